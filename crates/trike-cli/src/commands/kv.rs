//! Precisions of the KV cache: given, or chosen by `--kv auto` and stored in the user's cache.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use trike::{
    KvPrecisions, LoadOptions, Model, ModelFile,
    cpu::{Cpu, Isa},
    eval::{ChooseKv, ChosenKv, choose_kv},
    format::{Difference, Digest, Identity, OutputFile},
};

use super::{conflict, shipped};
use crate::{
    args::{KvChoice, PrecisionArgs},
    output,
    progress::Progress,
};

/// A choice of `--kv auto`. The field names are part of the schemas of the commands, and of the stored choices.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ChosenOutcome {
    /// Bound on the KL divergence.
    pub(crate) bound: f64,
    /// KL divergence from the default precision on the model's own text.
    pub(crate) kl: f64,
    pub(crate) kl_error: f64,
    /// Tokens of that text.
    pub(crate) tokens: usize,
    /// Bytes of the keys and values of a position.
    pub(crate) bytes_per_position: u64,
    pub(crate) default_bytes_per_position: u64,
}

/// A choice in the user's cache.
#[derive(Debug, Deserialize, Serialize)]
struct Stored {
    /// The settings that it was chosen for.
    identity: Vec<(String, String)>,
    /// Digest of the identity and `kv`.
    digest: String,
    kv: String,
    #[serde(flatten)]
    chosen: ChosenOutcome,
}

/// The precisions of a command's KV cache.
#[derive(Clone, Debug)]
pub(super) struct Kv {
    /// Those of `--kv`; `None` for the default.
    pub(super) precision: Option<KvPrecisions>,
    /// The choice of `--kv auto`.
    pub(super) chosen: Option<ChosenOutcome>,
}

/// Maximum bytes of a stored choice.
const MAX_STORED: u64 = 1 << 16;

/// The requested precision and bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvRequest {
    pub(super) choice: Option<KvChoice>,
    /// Bound of `--kv-kl`.
    pub(super) bound: Option<f64>,
}

impl PrecisionArgs {
    /// The request of `--kv` and `--kv-kl`, for a command that runs on the CPU or not.
    pub(super) fn kv_request(&self, on_host: bool) -> anyhow::Result<KvRequest> {
        KvRequest { choice: self.kv, bound: self.kv_kl }.checked(on_host)
    }
}

impl KvRequest {
    /// Returns an error for a bound without a choice, and on a device for mixed precisions.
    pub(super) fn checked(self, on_host: bool) -> anyhow::Result<Self> {
        match self.choice {
            Some(KvChoice::Auto) if !on_host => {
                Err(conflict("--kv auto: precisions are chosen on the CPU, leave out --device"))
            }
            Some(KvChoice::Given(kv)) if !on_host && !kv.is_uniform() => Err(conflict(&format!(
                "--kv {kv}: only the CPU has layers of several precisions, leave out --device"
            ))),
            Some(KvChoice::Auto) => Ok(self),
            _ if self.bound.is_some() => Err(conflict("--kv-kl: needs --kv auto")),
            _ => Ok(self),
        }
    }

    /// The precisions; before they are chosen, the default, which takes at least as much memory.
    pub(super) fn known(self, file: &ModelFile, options: &LoadOptions) -> anyhow::Result<Kv> {
        match self.choice {
            Some(KvChoice::Given(kv)) => Ok(Kv { precision: Some(kv), chosen: None }),
            None => Ok(Kv { precision: None, chosen: None }),
            Some(KvChoice::Auto) => {
                let stored = self.key(file, options)?.stored(file.config().spec.layers);
                let (precision, chosen) = stored.unzip();
                Ok(Kv { precision, chosen })
            }
        }
    }

    /// The precisions for a loaded model. A new choice is stored, if the cache can be written.
    pub(super) fn choose(
        self,
        known: Kv,
        file: &ModelFile,
        options: &LoadOptions,
        model: &dyn Model,
        quiet: bool,
    ) -> anyhow::Result<Kv> {
        let is_stored = known.chosen.is_some();
        let kv = match self.choice {
            Some(KvChoice::Auto) if !is_stored => {
                let progress = Progress::start("choosing the precision of the KV cache", quiet);
                let wanted = ChooseKv::default().with_kl(self.kl());
                let made = choose_kv(model, &wanted, &mut |done, total| progress.set(done, total))?;
                drop(progress);
                let chosen = ChosenOutcome::new(self.kl(), &made);
                let key = self.key(file, options)?;
                if !quiet && let Some(difference) = key.difference() {
                    output::note(&format!("--kv auto: chosen again, because {difference}"));
                }
                if let Err(error) = key.store(made.precision, chosen.clone())
                    && !quiet
                {
                    output::note(&format!("--kv auto: the choice is not stored: {error}"));
                }
                Kv { precision: Some(made.precision), chosen: Some(chosen) }
            }
            _ => known,
        };
        if let (Some(precision), Some(chosen), false) = (kv.precision, &kv.chosen, quiet) {
            let from = if is_stored { ", stored before" } else { "" };
            output::note(&format!("--kv auto: {precision}{from}; {}", chosen.sentence()));
        }
        Ok(kv)
    }

    fn kl(self) -> f64 {
        self.bound.unwrap_or(ChooseKv::KL)
    }

    /// The settings that a choice depends on.
    fn key(self, file: &ModelFile, options: &LoadOptions) -> anyhow::Result<Key> {
        let ChooseKv { tokens, seed, .. } = ChooseKv::default();
        let tokenizer = match &options.tokenizer {
            Some(tokenizer) => tokenizer.clone(),
            None => file.tokenizer(None)?,
        };
        let isa = options.cpu.as_ref().map_or_else(Isa::detect, Cpu::isa);
        let path = file.path().canonicalize().unwrap_or_else(|_| file.path().to_owned());
        // Options of the command line are part of the file name; everything else must match within the file.
        let asked = Identity::new()
            .with("the model", path.display())
            .with("the bound", self.kl())
            .with("the precision of activations", format!("{:?}", options.activations))
            .with("the precision of the head", format!("{:?}", options.head))
            .with("the layout of weights", format!("{:?}", options.layout))
            .with("the instruction set", isa.name());
        let identity = asked
            .clone()
            .with("the content of the model", file.digest()?)
            .with(
                "the pair of tokens that begin and end a text",
                format!("{:?} {:?}", tokenizer.bos(), tokenizer.eos()),
            )
            .with("the text", format!("{tokens} tokens, seed {seed}"));
        Ok(Key { identity, name: format!("{}.json", asked.digest()) })
    }
}

/// The settings that a choice depends on, and the name of its file.
struct Key {
    identity: Identity,
    name: String,
}

impl Key {
    /// Possible paths of a stored choice, in order of preference.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        shipped::folders().map(|folder| folder.join("kv").join(&self.name))
    }

    /// All stored choices; unreadable or corrupt files are skipped.
    fn all(&self) -> impl Iterator<Item = Stored> {
        self.files().filter_map(|file| {
            let mut text = String::new();
            fs::File::open(file).ok()?.take(MAX_STORED).read_to_string(&mut text).ok()?;
            let stored: Stored = serde_json::from_str(&text).ok()?;
            (stored.digest == digest(&stored.identity, &stored.kv)).then_some(stored)
        })
    }

    /// The stored choice.
    fn stored(&self, layers: usize) -> Option<(KvPrecisions, ChosenOutcome)> {
        self.all().filter(|stored| self.identity.differs_from(&stored.identity).is_none()).find_map(
            |stored| {
                let precision: KvPrecisions = stored.kv.parse().ok()?;
                precision.check(layers).ok()?;
                Some((precision, stored.chosen))
            },
        )
    }

    /// The setting in which a stored choice differs.
    fn difference(&self) -> Option<Difference> {
        self.all().find_map(|stored| self.identity.differs_from(&stored.identity))
    }

    /// Writes a choice to the first writable folder.
    fn store(&self, precision: KvPrecisions, chosen: ChosenOutcome) -> anyhow::Result<()> {
        let (identity, kv) = (self.identity.facts().to_vec(), precision.to_string());
        let digest = digest(&identity, &kv);
        let text = serde_json::to_string(&Stored { identity, digest, kv, chosen })?;
        let write = |file: &Path| {
            fs::create_dir_all(file.parent().unwrap_or(file))?;
            OutputFile::replace(file, &text)
        };
        let mut last = anyhow::anyhow!("no folder: set XDG_CACHE_HOME");
        for file in self.files() {
            match write(&file) {
                Ok(()) => return Ok(()),
                Err(error) => last = anyhow::anyhow!("cannot write {}: {error}", file.display()),
            }
        }
        Err(last)
    }
}

fn digest(identity: &[(String, String)], kv: &str) -> String {
    let texts = identity.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]).chain([kv]);
    texts.fold(Digest::default(), |digest, text| digest.bytes(text.as_bytes())).to_string()
}

impl ChosenOutcome {
    fn new(bound: f64, chosen: &ChosenKv) -> Self {
        let ChosenKv { kl, kl_error, tokens, bytes_per_position, default_bytes_per_position, .. } = *chosen;
        Self { bound, kl, kl_error, tokens, bytes_per_position, default_bytes_per_position }
    }

    fn sentence(&self) -> String {
        format!(
            "{} of {} bytes per position; KL divergence {:.5} +- {:.5} nats on {} tokens of its own text, bound {}",
            self.bytes_per_position,
            self.default_bytes_per_position,
            self.kl,
            self.kl_error,
            self.tokens,
            self.bound
        )
    }
}

//! `trike pull`, `list`, `show` and `rm`.

use std::{collections::BTreeMap, time::UNIX_EPOCH};

use anyhow::bail;
use serde::Serialize;
use trike::{
    ModelFile,
    hub::{HubCache, HubError, ModelId},
    llm::{GenerationConfig, LlmError},
};

use super::{conflict, shipped};
use crate::{
    args::{ListArgs, RmArgs, ShowArgs},
    output,
};

/// A model in the cache. The field names are the schema of `trike list --json` and `trike pull --json`.
#[derive(Debug, Serialize)]
pub(crate) struct LocalModel {
    /// The name accepted by the commands.
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Last change, in seconds since 1970 UTC.
    pub(crate) modified: Option<u64>,
}

/// The cached models. The field names are the schema of `trike list --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ListOutcome {
    /// Folder of the cache.
    pub(crate) cache: Option<String>,
    pub(crate) models: Vec<LocalModel>,
}

/// Downloads or updates a model.
#[cfg(feature = "hub")]
pub(crate) fn pull(args: &crate::args::PullArgs, quiet: bool) -> anyhow::Result<LocalModel> {
    let path = super::hub::pull(&args.id, quiet)?;
    let bytes = bytes_of(&path)?;
    Ok(LocalModel { name: args.id.to_string(), path: path.display().to_string(), bytes, modified: None })
}

/// Bytes of a model's file, of all files of a split model, or of the files of its directory.
#[cfg(feature = "hub")]
fn bytes_of(path: &std::path::Path) -> anyhow::Result<u64> {
    if path.is_file() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let parts = trike::format::gguf_parts(&name).unwrap_or_else(|| vec![name.into_owned()]);
        return parts.iter().map(|part| Ok(path.with_file_name(part).metadata()?.len())).sum();
    }
    let sizes = path.read_dir()?.flatten().filter_map(|entry| entry.path().metadata().ok());
    Ok(sizes.filter(std::fs::Metadata::is_file).map(|meta| meta.len()).sum())
}

/// The models in the cache, after the bundled one.
pub(crate) fn list(_args: &ListArgs) -> anyhow::Result<ListOutcome> {
    let tiny = LocalModel {
        name: shipped::NAME.to_owned(),
        path: "in the command".to_owned(),
        bytes: shipped::bytes(),
        modified: None,
    };
    let cache = shipped::hub().cache().ok();
    let cached = cache.as_ref().map(HubCache::models).transpose()?.unwrap_or_default();
    let local = cached.into_iter().map(|model| LocalModel {
        name: model.id.to_string(),
        path: model.path.display().to_string(),
        bytes: model.bytes,
        modified: model.modified.and_then(|time| Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())),
    });
    Ok(ListOutcome {
        cache: cache.map(|cache| cache.root().display().to_string()),
        models: std::iter::once(tiny).chain(local).collect(),
    })
}

/// Removed models. The field names are the schema of `trike rm --json`.
#[derive(Debug, Serialize)]
pub(crate) struct RmOutcome {
    pub(crate) removed: Vec<Removed>,
}

/// A removed model.
#[derive(Debug, Serialize)]
pub(crate) struct Removed {
    pub(crate) name: String,
    /// Bytes freed.
    pub(crate) bytes: u64,
}

/// Removes models from the cache, after confirmation.
pub(crate) fn rm(args: &RmArgs) -> anyhow::Result<RmOutcome> {
    let cache = shipped::hub().cache()?;
    // Check all names before asking, and before the first model is removed.
    args.ids.iter().try_for_each(|id| cache.check_removal(id))?;
    if !args.yes {
        let names: Vec<String> = args.ids.iter().map(ToString::to_string).collect();
        let what =
            format!("{} from {}, which other programs share", names.join(", "), cache.root().display());
        match output::ask(&format!("remove {what}?"))? {
            Some(true) => {}
            Some(false) => bail!("nothing was removed"),
            None => return Err(conflict(&format!("to remove {what}, confirm with --yes"))),
        }
    }
    let remove = |id: &ModelId| Ok::<_, HubError>(Removed { name: id.to_string(), bytes: cache.remove(id)? });
    Ok(RmOutcome { removed: args.ids.iter().map(remove).collect::<Result<_, _>>()? })
}

/// Description of a model. The field names are the schema of `trike show --json`.
#[derive(Debug, Serialize)]
pub(crate) struct ShowOutcome {
    pub(crate) path: String,
    pub(crate) format: &'static str,
    pub(crate) architecture: String,
    pub(crate) parameters: u64,
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) vocabulary: usize,
    /// Context length in tokens.
    pub(crate) context: usize,
    /// Bytes of all tensors.
    pub(crate) bytes: u64,
    /// Bytes of tensors by stored type.
    pub(crate) types: BTreeMap<String, u64>,
    /// Whether the linear layers are ternary.
    pub(crate) ternary: bool,
    /// Entries of the tokenizer; `None` when the model has none.
    pub(crate) tokens: Option<usize>,
    /// Whether it has a chat template.
    pub(crate) chat: bool,
    /// Recommended sampling, from its generation configuration.
    pub(crate) sampling: GenerationConfig,
}

/// Describes a model from its headers.
pub(crate) fn show(args: &ShowArgs, quiet: bool) -> anyhow::Result<ShowOutcome> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let tokenizer = match file.tokenizer(args.tokenizer.tokenizer.as_deref()) {
        Err(LlmError::NoTokenizer { .. }) => None,
        tokenizer => Some(tokenizer?),
    };
    let chat = match &tokenizer {
        Some(tokenizer) => file.chat_template(tokenizer)?.is_some(),
        None => false,
    };
    let tensors = file.source().tensors();
    let mut types = BTreeMap::new();
    for tensor in tensors {
        *types.entry(tensor.kind.to_string()).or_default() += tensor.bytes;
    }
    let spec = &file.config().spec;
    Ok(ShowOutcome {
        path: file.path().display().to_string(),
        format: file.format(),
        architecture: file.config().architecture.clone(),
        parameters: tensors.iter().map(trike::format::TensorInfo::elements).sum(),
        layers: spec.layers,
        hidden: spec.hidden,
        vocabulary: spec.vocab,
        context: spec.context,
        bytes: tensors.iter().map(|tensor| tensor.bytes).sum(),
        types,
        ternary: file.is_ternary(),
        tokens: tokenizer.map(|tokenizer| tokenizer.vocab_size()),
        chat,
        sampling: file.generation_config()?,
    })
}

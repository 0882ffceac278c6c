//! Choosing a model, and `trike pull`, `list`, `show` and `rm`.

use std::path::PathBuf;

use clap::Args;
use trike::hub::ModelId;

use super::{JsonArg, TokenizerArg};

/// Model argument.
#[derive(Args, Debug)]
pub(crate) struct ModelArg {
    /// Directory, file, org/name on the HuggingFace hub, or tiny (bundled) [default: tiny]
    ///
    /// On the hub: org/name[@revision][:file or variant], or a link such as https://huggingface.co/org/name. The default is the
    /// variable TRIKE_MODEL, else tiny.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(crate) name: Option<PathBuf>,
    // Without `env`: a set variable would conflict with MODEL. The command reads the variable itself.
    /// The same as MODEL [env: TRIKE_MODEL]
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
}

impl ModelArg {
    /// The given model, if any: the argument, the option, or the variable.
    pub(crate) fn chosen(&self) -> Option<PathBuf> {
        let variable =
            || std::env::var_os("TRIKE_MODEL").filter(|value| !value.is_empty()).map(PathBuf::from);
        self.name.clone().or_else(|| self.model.clone()).or_else(variable)
    }
}

/// Parses the name of a model on the hub.
fn model_id(text: &str) -> Result<ModelId, String> {
    if let Some(link) = crate::naming::link(text) {
        return link.map_err(|error| error.to_string());
    }
    text.parse().map_err(|_| "expected org/name, org/name@revision or org/name:file".to_owned())
}

/// Download a model from the HuggingFace hub, or update it
///
/// Downloads only the files that Trike reads, into the cache of Hugging Face's own tools; cached files are not downloaded again.
/// Every command that takes a MODEL downloads a missing one automatically.
#[cfg(feature = "hub")]
#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// org/name[@revision][:file or variant], such as org/name-gguf:Q2_0, or a link to it
    #[arg(value_name = "MODEL", value_parser = model_id)]
    pub(crate) id: ModelId,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// List the models in the cache, with their sizes
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// List published ternary models in formats that Trike reads instead
    ///
    /// With the sizes of their downloads, the memory that they need, and the predicted tokens/s on this machine: its memory
    /// bandwidth, measured in about a second, over the size of the model. Generation is at most that fast.
    #[arg(long)]
    pub(crate) known: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Show a model's sizes, formats, tokenizer, chat template and recommended sampling
///
/// Reads headers only; `trike inspect` reads every tensor.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Remove models from the cache
///
/// org/name removes the repository with all its revisions, org/name@revision one revision, org/name:file one file. Files shared
/// with another revision are kept. The cache is shared with Hugging Face's own tools and programs such as transformers: in a
/// terminal, the command asks first.
#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// org/name[@revision][:file or variant]
    #[arg(value_name = "MODEL", required = true, value_parser = model_id)]
    pub(crate) ids: Vec<ModelId>,
    /// Remove without asking; required without a terminal
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

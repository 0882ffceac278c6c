//! `trike embed`.

use anyhow::Context;
use serde::Serialize;
use trike::{KvSpec, ModelFile, llm::Pooling};

use super::{
    load::{load, open},
    text,
};
use crate::{
    args::{self, EmbedArgs},
    npy::NpyWriter,
    output,
    progress::Progress,
};

/// Embeddings of texts. The field names are the schema of `trike embed --json`.
#[derive(Debug, Serialize)]
pub(crate) struct EmbedOutcome {
    pub(crate) model: String,
    /// `mean` or `last`.
    pub(crate) pooling: &'static str,
    /// Elements per embedding.
    pub(crate) width: usize,
    /// Tokens of each text.
    pub(crate) tokens: Vec<usize>,
    /// One unit vector per text; empty with `--output`.
    pub(crate) embeddings: Vec<Vec<f32>>,
    /// The written file.
    pub(crate) output: Option<String>,
    /// Activation precisions of ternary layers.
    pub(crate) activations: String,
}

/// Embeds all texts.
pub(crate) fn embed(args: &EmbedArgs, quiet: bool) -> anyhow::Result<EmbedOutcome> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
    let texts = text::texts(args)?;
    let ids = texts.iter().map(|text| tokenizer.encode_prompt(text)).collect::<Result<Vec<_>, _>>()?;
    let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
    let wanted = args
        .precision
        .options(&file, &args.cpu.cpu()?)
        .with_tokenizer(tokenizer)
        .with_sequence(KvSpec::new(file.default_kv(), longest.clamp(1, file.config().spec.context)));
    let model = load(open(&args.device.device, quiet)?, &file, &wanted, quiet)?;
    let width = model.config().spec.hidden;
    // Created before the computation, which would be wasted if the file cannot be written.
    let writer = args.output.as_ref().map(|path| NpyWriter::create(path, ids.len(), width));
    let mut writer = writer.transpose()?;
    let progress = Progress::start("computing", quiet);
    let mut embeddings = Vec::new();
    for (done, ids) in ids.iter().enumerate() {
        let embedding = model.embed(ids, args.pooling).with_context(|| format!("text {}", done + 1))?;
        match &mut writer {
            Some(writer) => writer.row(&embedding)?,
            None => embeddings.push(embedding),
        }
        progress.set(done + 1, texts.len());
    }
    if let Some(writer) = writer {
        writer.finish()?;
    }
    Ok(EmbedOutcome {
        model: output::model_name(file.path()),
        pooling: match args.pooling {
            Pooling::Mean => "mean",
            Pooling::Last => "last",
        },
        width,
        tokens: ids.iter().map(Vec::len).collect(),
        embeddings,
        output: args.output.as_ref().map(|path| path.display().to_string()),
        activations: args::activations_name(&model.activations()),
    })
}

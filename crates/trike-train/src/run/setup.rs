//! Reads the inputs of a run, and writes its model.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::Value;
use trike_comm::{Communicator, Shards};
use trike_cpu::{Cpu, free_memory};
use trike_format::{HfDirWriter, OutputFile};
use trike_llm::{DeviceChoice, ModelConfig, ModelFile, hf_config, write_tokenizer, write_tokenizer_file};
use trike_nn::DecoderSpec;
use trike_text::chat::ChatTemplate;
use trike_text::tokenizer::Tokenizer;

use super::RunConfig;
use super::measure::HeldOutText;
use super::ranks;
use super::reading::Reading;
use crate::data::{BatchConfig, Batches, DataRecord, Documents, Encoder, HeldOut, Position};
use crate::{
    DocumentSampler, Parameters, RunShape, SampleConfig, Teacher, TernaryPolicy, TrainError, write_packed,
};

/// Default number of evaluations of a run.
pub(super) const EVALUATIONS: usize = 10;
/// Maximum number of held-out documents.
const MOST_HELD_OUT: f64 = 512.0;
/// Passes over the data above which the teacher generates more of it.
const PASSES: u64 = 4;
/// The value of `teacher` for no teacher.
pub(super) const NONE: &str = "none";
/// Directory in which the model is written before it is renamed into place.
const UNFINISHED: &str = ".unfinished";

/// The source of architecture and initial weights.
#[derive(Debug)]
enum Base {
    /// A model.
    Model(Box<ModelFile>),
    /// A `config.json` with its content.
    Random(Box<(ModelConfig, Value)>),
}

/// A run that is ready to start.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use trike_train::run::{RunEvent, Run, RunConfig};
///
/// let config = RunConfig::open("run.toml".as_ref())?;
/// let cpu = trike_cpu::Cpu::new(0)?;
/// let report = Run::open(config)?.train(&cpu, &mut |event| {
///     if let RunEvent::Evaluated(found) = event {
///         println!("step {}: {:.3} bits per token", found.step, found.bits_per_token);
///     }
///     ControlFlow::Continue(())
/// })?;
/// println!("{} steps", report.steps);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Run {
    pub(super) config: RunConfig,
    base: Base,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    pub(super) start: Parameters,
    /// The teacher's weights, unless they are the initial weights.
    taught_by: Option<Parameters>,
    has_teacher: bool,
    pub(super) documents: Documents,
    pub(super) split: HeldOut,
    pub(super) text: HeldOutText,
    pub(super) batches: BatchConfig,
    /// Estimated memory of the run in bytes.
    pub(super) memory: u64,
}

/// Estimates the memory of a run and checks it against the limit.
fn memory(
    config: &RunConfig,
    spec: &DecoderSpec,
    batches: BatchConfig,
    teacher: Option<&DecoderSpec>,
    is_own: bool,
    reading: Reading<'_>,
) -> Result<u64, TrainError> {
    let policy = config.policy()?;
    let shape = RunShape {
        spec,
        policy: &policy,
        optimizer: config.optimizer,
        rows: batches.rows.saturating_mul(config.gradient_accumulation_steps),
        length: batches.length,
        checkpoint: Some(config.gradient_checkpointing).filter(|&blocks| blocks > 0),
        adapter: None,
        teacher: teacher.map(|spec| (spec, &TernaryPolicy::DENSE)),
        threads: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let estimate = reading.memory(&shape)?;
    // The initial weights stay in memory; the teacher may share them.
    let needed = estimate.total().saturating_add(if is_own { 0 } else { estimate.weights });
    // The available memory of a device is known after it is opened.
    let is_host = config.device()? == DeviceChoice::Cpu;
    let free = free_memory().into_iter().map(|(_, bytes)| bytes).min().filter(|_| is_host);
    match config.memory_limit.or(free) {
        Some(limit) if needed > limit => Err(TrainError::Memory { needed, limit }),
        _ => Ok(needed),
    }
}

impl Run {
    /// Opens models, tokenizer and data.
    ///
    /// # Errors
    ///
    /// Errors of [`RunConfig::validate`]; [`TrainError::Config`] for an output directory that contains a model;
    /// [`TrainError::Memory`] for a run that exceeds the memory limit; [`TrainError::Vocabulary`] for a teacher with another
    /// vocabulary size; and errors of the files.
    pub fn open(config: RunConfig) -> Result<Self, TrainError> {
        Self::read(config, Reading::ALL)
    }

    /// [`open`](Self::open) for one of several ranks, which reads only its own part of the models for pipeline and tensor
    /// parallelism.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and [`TrainError::Option`] for more ranks than the model can be divided among.
    pub fn open_ranks(config: RunConfig, comm: &dyn Communicator) -> Result<Self, TrainError> {
        let reading = Reading::of(&config, comm);
        Self::read(config, reading)
    }

    fn read(config: RunConfig, reading: Reading<'_>) -> Result<Self, TrainError> {
        config.validate()?;
        refuse_model(&config.output_dir)?;
        let base = match (&config.base_model, &config.base_model_config) {
            (Some(path), _) => Base::Model(Box::new(ModelFile::open(path)?)),
            (None, path) => Base::Random(Box::new(architecture(path.as_deref().unwrap_or(Path::new("")))?)),
        };
        let spec = match &base {
            Base::Model(file) => file.config().spec.clone(),
            Base::Random(model) => model.0.spec.clone(),
        };
        reading.check(&spec)?;
        let batches = config.batches(spec.context)?;
        config.tokens_per_step(&batches)?;
        let given = config.teacher.as_deref().filter(|path| path.as_os_str() != NONE);
        let is_own = config.teacher.is_none() && config.is_ternary() && matches!(base, Base::Model(_));
        let taught_by = given.map(ModelFile::open).transpose()?;
        // Checked before anything large is read.
        let of_teacher = taught_by.as_ref().map(|file| &file.config().spec).or(is_own.then_some(&spec));
        let memory = memory(&config, &spec, batches, of_teacher, is_own, reading)?;
        let (tokenizer, template, start) = match &base {
            Base::Model(file) => {
                let tokenizer = file.tokenizer(config.tokenizer.as_deref())?;
                let template = file.chat_template(&tokenizer)?;
                (tokenizer, template, weights(file, reading)?)
            }
            Base::Random(model) => {
                let tokenizer = Tokenizer::open(config.tokenizer.as_deref().unwrap_or(Path::new("")))?;
                tokenizer.check_vocab(model.0.spec.vocab)?;
                (tokenizer, None, reading.random(&spec, config.seed)?)
            }
        };
        let taught_by = taught_by.map(|file| weights(&file, reading)).transpose()?;
        let data: Vec<_> = config.datasets.iter().map(|data| (&data.path, data.kind)).collect();
        let documents = Documents::open_as(&data)?;
        documents.check()?;
        let share = config.val_set_size.min(MOST_HELD_OUT / documents.len() as f64);
        let split = HeldOut::new(documents.len(), share, config.seed);
        if split.train.is_empty() {
            return Err(TrainError::TooFewDocuments { documents: documents.len(), needed: 2 });
        }
        let encoder = Encoder::new(&tokenizer, template.as_ref());
        // The batch size of training, so that the estimated memory suffices.
        let together = batches.rows * batches.length;
        let text = HeldOutText::read(&documents, &split.held_out, encoder, batches.length, together)?;
        Ok(Self {
            has_teacher: is_own || taught_by.is_some(),
            config,
            base,
            tokenizer,
            template,
            start,
            taught_by,
            documents,
            split,
            text,
            batches,
            memory,
        })
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    pub(super) fn policy(&self) -> Result<TernaryPolicy, TrainError> {
        self.config.policy()
    }

    pub(super) fn teacher(&self) -> Option<Teacher<'_>> {
        let parameters = self.taught_by.as_ref().unwrap_or(&self.start);
        self.has_teacher.then_some(Teacher { parameters, policy: TernaryPolicy::DENSE })
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder::new(&self.tokenizer, self.template.as_ref())
    }

    /// Batches to learn from.
    pub(super) fn data(&self, position: Position) -> Result<Batches<'_>, TrainError> {
        Batches::new(&self.documents, &self.split.train, self.encoder(), self.batches, position)
    }

    /// Tokens of all training documents, and whether all of them are plain texts.
    pub(super) fn tokens(&self) -> Result<(u64, bool), TrainError> {
        let (mut all, mut texts) = (0, true);
        for &index in &self.split.train {
            let record = self.documents.read(index as usize)?;
            texts &= matches!(record, DataRecord::Text(_));
            let tokens = self.encoder().encode(&record);
            let tokens = tokens.map_err(|e| self.documents.not_encoded(index as usize, &e))?;
            all += tokens.ids.len().saturating_sub(1) as u64;
        }
        Ok((all, texts))
    }

    /// Number of documents that the teacher generates for a run of `tokens` tokens.
    pub(super) fn to_write(&self, tokens: u64) -> Result<usize, TrainError> {
        if let Some(documents) = self.config.teacher_documents {
            return Ok(documents);
        }
        let enough = tokens / PASSES;
        // A token rarely has more than 16 bytes; clearly sufficient data is not counted.
        if !self.has_teacher || self.documents.bytes() / 16 > enough {
            return Ok(0);
        }
        let (have, texts) = self.tokens()?;
        let each = (have / self.split.train.len().max(1) as u64).clamp(1, self.batches.length as u64);
        Ok(if texts { (enough.saturating_sub(have) / each) as usize } else { 0 })
    }

    /// Adds generated documents to the training data, unless `progress` stops it, which returns `false`. They are the same in every
    /// run of the configuration; each rank generates a part.
    pub(super) fn write_documents(
        &mut self,
        cpu: &Cpu,
        count: usize,
        comm: Option<&dyn Communicator>,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<bool, TrainError> {
        let Some(teacher) = self.teacher().filter(|_| count > 0) else { return Ok(true) };
        let length = self.batches.length;
        let config =
            SampleConfig { documents: count, length, seed: self.config.seed, ..SampleConfig::default() };
        let sampler = DocumentSampler::new(teacher.parameters, &self.tokenizer, config)?;
        let own = comm.map_or(0..count, |comm| Shards::even(count, comm.size()).of_rank(comm.rank()));
        let written = sampler.range(cpu, own, progress)?;
        if ranks::any(comm, written.is_none())? {
            return Ok(false);
        }
        let first = self.documents.len() as u32;
        self.split.train.extend((0..count as u32).map(|i| first + i));
        self.documents.add_tokens(ranks::all_documents(comm, written.unwrap_or_default())?)?;
        Ok(true)
    }

    /// Writes a model directory with trained weights; returns the files that are left out. Nothing is renamed into place until
    /// everything is written.
    pub(super) fn write_model(&self, parameters: &Parameters) -> Result<Vec<String>, TrainError> {
        let dir = &self.config.output_dir;
        let temporary = dir.join(UNFINISHED);
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| TrainError::Io { path, source }
        };
        if temporary.exists() {
            fs::remove_dir_all(&temporary).map_err(io(&temporary))?;
        }
        let json = match &self.base {
            Base::Model(file) => hf_config(file, file.config(), dir),
            Base::Random(model) => Some(model.1.clone()),
        };
        let json = json.ok_or_else(|| TrainError::Config {
            problem: "the architecture of base_model has no config.json".to_owned(),
        })?;
        let mut writer = HfDirWriter::create(&temporary, json)?;
        write_packed(&mut writer, parameters, &self.policy()?)?;
        let notes = match &self.base {
            Base::Model(file) => write_tokenizer(&writer, file, self.config.tokenizer.as_deref())?,
            Base::Random(_) => {
                let tokenizer = self.config.tokenizer.as_deref().unwrap_or(Path::new(""));
                write_tokenizer_file(&writer, tokenizer)?;
                Vec::new()
            }
        };
        writer.finish()?;
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&temporary).map_err(io(&temporary))? {
            files.push(entry.map_err(io(&temporary))?.path());
        }
        // A directory with a `config.json` counts as a model, so it comes last.
        files.sort_by_key(|path| path.ends_with("config.json"));
        for from in files {
            let to = dir.join(from.file_name().unwrap_or_default());
            fs::rename(&from, &to).map_err(io(&to))?;
        }
        fs::remove_dir(&temporary).map_err(io(&temporary))?;
        Ok(notes)
    }
}

/// Refuses an output directory that contains a model.
pub(super) fn refuse_model(output: &Path) -> Result<(), TrainError> {
    if !output.join("config.json").exists() {
        return Ok(());
    }
    let problem = format!(
        "output_dir {} contains a model: expected a new directory, or one with a run that was interrupted",
        output.display()
    );
    Err(TrainError::Config { problem })
}

/// Reads the weights of a model, or this rank's part.
fn weights(file: &ModelFile, reading: Reading<'_>) -> Result<Parameters, TrainError> {
    Ok(reading.open(&file.config().spec, file)?)
}

/// Reads the architecture of a `config.json`.
fn architecture(path: &Path) -> Result<(ModelConfig, Value), TrainError> {
    let text = fs::read_to_string(path).map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
    let json: Value = serde_json::from_str(&text)
        .map_err(|e| TrainError::Config { problem: format!("{}: {e}", path.display()) })?;
    Ok((ModelConfig::from_hf(path, &json)?, json))
}

/// Writes a small file atomically.
pub(super) fn write(path: &Path, text: &str) -> Result<(), TrainError> {
    OutputFile::replace(path, text).map_err(|source| TrainError::Io { path: path.to_owned(), source })
}

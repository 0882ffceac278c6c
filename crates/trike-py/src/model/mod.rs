//! `Model`: a language model on a thread of its own.
//!
//! The thread owns the model, because a model on a GPU or over several ranks cannot move between threads. Calls are jobs that it
//! executes one by one, so that any number of Python threads can share one model, and a caller can abandon a job on Ctrl-C.

mod calls;

use std::{
    path::PathBuf,
    sync::{
        Mutex,
        mpsc::{Sender, channel},
    },
};

use pyo3::{prelude::*, types::PyDict};
use trike::{
    ActivationPrecision, KvSpec, Model, ModelFile, Tokenizer,
    llm::{GenerationConfig, Session},
    text::chat::ChatTemplate,
};

use crate::{
    errors, host, options,
    work::{self, Line, connect},
};

/// The model, owned by its thread.
pub(crate) struct Served {
    pub(crate) model: Box<dyn Model>,
    /// Keys and values of the last chat, reused by the next answer.
    pub(crate) session: Session,
}

type Job = Box<dyn FnOnce(&mut Served) + Send>;

/// Properties of a model that are available without its thread.
struct Facts {
    path: PathBuf,
    format: &'static str,
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
    sampling: GenerationConfig,
    backend: String,
    activations: Vec<String>,
    vocab: usize,
    hidden: usize,
    context: usize,
    layers: usize,
    weight_bytes: usize,
    architecture: String,
}

/// A language model, loaded from a directory, a GGUF file or a llama2.c checkpoint.
#[pyclass(name = "Model", module = "trike", frozen, subclass)]
pub(crate) struct PyModel {
    /// Only locked to send a job.
    jobs: Mutex<Sender<Job>>,
    facts: Facts,
    process: u32,
}

impl PyModel {
    /// Sends a job to the model's thread and waits for its result.
    fn ask<T: Send + 'static>(
        &self,
        py: Python<'_>,
        progress: Option<&Bound<'_, PyAny>>,
        job: impl FnOnce(&mut Served, &Line<T>) -> PyResult<T> + Send + 'static,
    ) -> PyResult<T> {
        let (line, ticket) = connect();
        self.send(Box::new(move |served| line.run(|line| job(served, line))))?;
        ticket.wait(py, progress)
    }

    fn send(&self, job: Job) -> PyResult<()> {
        host::check_process(self.process, "the model was loaded", "load it in the child")?;
        let jobs = self.jobs.lock().map_err(|_| work::gone())?;
        jobs.send(job).map_err(|_| work::gone())
    }

    fn tokenizer(&self) -> PyResult<&Tokenizer> {
        self.facts.tokenizer.as_ref().ok_or_else(|| {
            errors::ModelError::new_err(format!(
                "{}: the model has no tokenizer: pass one with tokenizer=",
                self.facts.path.display()
            ))
        })
    }
}

#[pymethods]
impl PyModel {
    /// Loads a model.
    #[new]
    #[pyo3(signature = (path, *, device="cpu", threads=0, activations="auto", head="auto", tokenizer=None, chat_template=None, context=None, progress=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        device: &str,
        threads: usize,
        activations: &str,
        head: &str,
        tokenizer: Option<PathBuf>,
        chat_template: Option<String>,
        context: Option<usize>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let device = host::device(device)?;
        let wanted = options::load(threads, activations, head)?;
        let (jobs, waiting) = channel::<Job>();
        let (line, ticket) = connect();
        let serve = move || {
            let mut served = None;
            line.run(|line| {
                let file = ModelFile::open(&path).map_err(errors::model)?;
                let own = match file.tokenizer(tokenizer.as_deref()) {
                    Ok(tokenizer) => Some(tokenizer),
                    Err(trike::LlmError::NoTokenizer { .. }) => None,
                    Err(error) => return Err(errors::model(error)),
                };
                let template = match (&own, &chat_template) {
                    (Some(tokenizer), Some(text)) => {
                        let given = ChatTemplate::from_source(text).map_err(errors::value)?;
                        Some(given.with_tokens_of(tokenizer))
                    }
                    (Some(tokenizer), None) => file.chat_template(tokenizer).map_err(errors::model)?,
                    (None, _) => None,
                };
                let sampling = file.generation_config().map_err(errors::model)?;
                let sequence = context.map(|length| KvSpec::new(file.default_kv(), length));
                let wanted = wanted.with_tokenizer(own.clone()).with_sequence(sequence);
                let device = device.open().map_err(errors::model)?;
                let mut loading = |done, total| line.progress("loading", done, total);
                let model = device.load(&file, &wanted, &mut loading).map_err(errors::model)?;
                let facts = Facts::new(&*model, &file, own, template, sampling);
                served = Some(Served { model, session: Session::default() });
                Ok(facts)
            });
            // After a failed load, the error has been sent.
            let Some(mut served) = served else { return };
            for job in waiting {
                job(&mut served);
            }
        };
        std::thread::Builder::new().name("trike-model".to_owned()).spawn(serve)?;
        let facts = ticket.wait(py, progress.as_ref())?;
        Ok(Self { jobs: jobs.into(), facts, process: std::process::id() })
    }

    /// The file or directory.
    #[getter]
    fn path(&self) -> PathBuf {
        self.facts.path.clone()
    }

    /// Sizes and properties as a dict.
    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = &self.facts;
        let dict = PyDict::new(py);
        dict.set_item("architecture", &facts.architecture)?;
        dict.set_item("format", facts.format)?;
        dict.set_item("backend", &facts.backend)?;
        dict.set_item("activations", &facts.activations)?;
        dict.set_item("layers", facts.layers)?;
        dict.set_item("hidden", facts.hidden)?;
        dict.set_item("vocab", facts.vocab)?;
        dict.set_item("context", facts.context)?;
        dict.set_item("weight_bytes", facts.weight_bytes)?;
        dict.set_item("can_chat", facts.template.is_some())?;
        Ok(dict)
    }

    /// Context length in tokens.
    #[getter]
    fn context(&self) -> usize {
        self.facts.context
    }

    /// Rows of the embedding.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.facts.vocab
    }

    /// The beginning-of-sequence token, or None.
    #[getter]
    fn bos(&self) -> PyResult<Option<u32>> {
        Ok(self.tokenizer()?.bos())
    }

    /// The tokens that end a text.
    #[getter]
    fn eos(&self) -> PyResult<Vec<u32>> {
        Ok(self.tokenizer()?.eos().to_vec())
    }

    /// The tokens of a text; with `bos`, preceded by BOS as in a prompt.
    #[pyo3(signature = (text, bos=true))]
    fn tokenize(&self, text: &str, bos: bool) -> PyResult<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let ids = if bos { tokenizer.encode_prompt(text) } else { tokenizer.encode(text, false) };
        ids.map_err(errors::value)
    }

    /// The text of tokens.
    fn detokenize(&self, ids: Vec<u32>) -> PyResult<String> {
        self.tokenizer()?.decode(&ids).map_err(errors::value)
    }

    /// The bytes of tokens, possibly parts of characters.
    fn detokenize_bytes(&self, ids: Vec<u32>) -> PyResult<Vec<u8>> {
        self.tokenizer()?.decode_bytes(&ids).map_err(errors::value)
    }

    fn __repr__(&self) -> String {
        let facts = &self.facts;
        format!(
            "Model('{}', architecture='{}', backend='{}')",
            facts.path.display(),
            facts.architecture,
            facts.backend
        )
    }
}

impl Facts {
    fn new(
        model: &dyn Model,
        file: &ModelFile,
        tokenizer: Option<Tokenizer>,
        template: Option<ChatTemplate>,
        sampling: GenerationConfig,
    ) -> Self {
        let spec = &model.config().spec;
        Self {
            path: model.path().to_owned(),
            format: file.format(),
            tokenizer,
            template,
            sampling,
            backend: model.backend(),
            activations: model.activations().iter().map(precision_name).collect(),
            vocab: spec.vocab,
            hidden: spec.hidden,
            context: spec.context,
            layers: spec.layers,
            weight_bytes: model.weight_bytes(),
            architecture: model.config().architecture.clone(),
        }
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyModel>()?;
    m.add_class::<crate::stream::PyStream>()
}

/// The name of an activation precision, as the command prints it.
fn precision_name(precision: &ActivationPrecision) -> String {
    match precision {
        ActivationPrecision::F32 => "f32".to_owned(),
        ActivationPrecision::Int16 => "int16".to_owned(),
        ActivationPrecision::Int8PerToken => "int8".to_owned(),
        ActivationPrecision::Int8PerGroup(group) => format!("int8-group{}", group.get()),
    }
}

//! The calls of a model: generation, logits, embeddings, perplexity, memory.

use std::{ops::ControlFlow, sync::mpsc::channel};

use numpy::{PyArray1, PyArray2};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};
use serde_json::{Map, Value};
use trike::{
    GenerateOptions, KvSpec, ScoreOptions,
    llm::Session,
    text::chat::{ChatTemplate, Conversation, Message, RenderOptions},
};

use super::{PyModel, Served};
use crate::{
    arrays::array,
    errors,
    generation::as_dict,
    options::{self, Sampling},
    stream::{Piece, PyStream},
};

/// A prompt as text or as tokens.
#[derive(FromPyObject)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A generation request, as sent to the model's thread.
struct Request {
    ids: Vec<u32>,
    ends: Vec<u32>,
    options: GenerateOptions,
    /// Whether it continues the previous chat.
    chat: bool,
}

impl Request {
    /// Generates; `on_text` receives the pieces.
    fn run(
        self,
        served: &mut Served,
        mut on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> PyResult<trike::Generation> {
        let Served { model, session } = served;
        let mut fresh = Session::default();
        let session = if self.chat { session } else { &mut fresh };
        model.generate_in(session, self.ids, &self.ends, &self.options, &mut on_text).map_err(errors::run)
    }
}

impl PyModel {
    fn prompt(&self, prompt: Prompt, sampling: &Sampling) -> PyResult<Request> {
        let options = sampling.options(&self.facts.sampling)?;
        let (ids, ends) = match prompt {
            Prompt::Text(text) => {
                let tokenizer = self.tokenizer()?;
                let ids = tokenizer.encode_prompt(&text).map_err(errors::value)?;
                (ids, tokenizer.eos().to_vec())
            }
            // A model without a tokenizer runs on token ids.
            Prompt::Ids(ids) => {
                (ids, self.facts.tokenizer.as_ref().map_or_else(Vec::new, |t| t.eos().to_vec()))
            }
        };
        self.check_ids(&ids)?;
        Ok(Request { ids, ends, options, chat: false })
    }

    fn template(&self) -> PyResult<&ChatTemplate> {
        self.facts.template.as_ref().ok_or_else(|| {
            errors::ModelError::new_err(format!(
                "{}: the model has no chat template: pass one with chat_template=, or use generate",
                self.facts.path.display()
            ))
        })
    }

    fn conversation(&self, messages: &str, tools: Option<String>, sampling: &Sampling) -> PyResult<Request> {
        let (tokenizer, template) = (self.tokenizer()?, self.template()?);
        let mut talk = Conversation::of(parse(messages)?);
        let options = sampling.options(&self.facts.sampling)?;
        let context = options.context.unwrap_or(self.facts.context);
        // At least half of the context is reserved for the conversation.
        let room = options.max_tokens.unwrap_or(context / 4).min(context / 2);
        let rendering = RenderOptions::default().with_tools(tools);
        let prompt = talk.fit(template, tokenizer, &rendering, context - room).map_err(errors::value)?;
        let options = options.with_context(context);
        Ok(Request { ids: prompt.ids, ends: tokenizer.turn_ends(), options, chat: true })
    }

    /// `ValueError` for ids outside the vocabulary.
    fn check_ids(&self, ids: &[u32]) -> PyResult<()> {
        match ids.iter().find(|&&id| id as usize >= self.facts.vocab) {
            Some(id) => Err(PyValueError::new_err(format!(
                "ids: expected numbers below {}, got {id}",
                self.facts.vocab
            ))),
            None => Ok(()),
        }
    }

    fn text<'py>(
        &self,
        py: Python<'py>,
        request: Request,
        on_text: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let wants_text = on_text.is_some();
        let generation = self.ask(py, on_text, move |served, line| {
            request.run(served, |piece| {
                if wants_text {
                    line.text(piece);
                }
                if line.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        })?;
        as_dict(py, &generation)
    }

    fn pieces(&self, request: Request) -> PyResult<PyStream> {
        let (sender, pieces) = channel();
        let texts = sender.clone();
        self.send(Box::new(move |served| {
            let (line, _ticket) = crate::work::connect::<()>();
            line.run(|_| {
                // A failed send means that the iterator was dropped.
                let generation =
                    request.run(served, |piece| match texts.send(Piece::Text(piece.to_owned())) {
                        Ok(()) => ControlFlow::Continue(()),
                        Err(_) => ControlFlow::Break(()),
                    });
                let _ = sender.send(Piece::Done(generation));
                Ok(())
            });
        }))?;
        Ok(PyStream::new(pieces))
    }
}

/// Parses messages in JSON, at least one.
fn parse(messages: &str) -> PyResult<Vec<Message>> {
    let objects: Vec<Map<String, Value>> = serde_json::from_str(messages).map_err(errors::value)?;
    if objects.is_empty() {
        return Err(PyValueError::new_err("messages: expected at least one, got none"));
    }
    let message = |(i, object): (usize, Map<String, Value>)| -> PyResult<Message> {
        let wrong = |problem: String| PyValueError::new_err(format!("messages[{i}]: {problem}"));
        let message = Message::try_from(object).map_err(wrong)?;
        message.check().map_err(|e| wrong(e.to_string()))?;
        Ok(message)
    };
    objects.into_iter().enumerate().map(message).collect()
}

#[pymethods]
impl PyModel {
    /// Continues a prompt, given as text or as a list of tokens.
    #[pyo3(signature = (prompt, sampling, on_text=None))]
    fn _generate<'py>(
        &self,
        py: Python<'py>,
        prompt: Prompt,
        sampling: Sampling,
        on_text: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.text(py, self.prompt(prompt, &sampling)?, on_text.as_ref())
    }

    /// As `_generate`, piece by piece.
    fn _stream(&self, prompt: Prompt, sampling: Sampling) -> PyResult<PyStream> {
        self.pieces(self.prompt(prompt, &sampling)?)
    }

    /// Answers a conversation, messages and tools in JSON.
    #[pyo3(signature = (messages, tools, sampling, on_text=None))]
    fn _chat<'py>(
        &self,
        py: Python<'py>,
        messages: &str,
        tools: Option<String>,
        sampling: Sampling,
        on_text: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.text(py, self.conversation(messages, tools, &sampling)?, on_text.as_ref())
    }

    /// As `_chat`, piece by piece.
    #[pyo3(signature = (messages, tools, sampling))]
    fn _stream_chat(&self, messages: &str, tools: Option<String>, sampling: Sampling) -> PyResult<PyStream> {
        self.pieces(self.conversation(messages, tools, &sampling)?)
    }

    /// A conversation rendered by the template.
    #[pyo3(signature = (messages, tools, add_generation_prompt))]
    fn _rendered(
        &self,
        messages: &str,
        tools: Option<String>,
        add_generation_prompt: bool,
    ) -> PyResult<String> {
        let options =
            RenderOptions::default().with_tools(tools).with_add_generation_prompt(add_generation_prompt);
        self.template()?.render(&parse(messages)?, &options).map_err(errors::value)
    }

    /// The tokens of a conversation.
    #[pyo3(signature = (messages, tools, add_generation_prompt))]
    fn _chat_ids(
        &self,
        messages: &str,
        tools: Option<String>,
        add_generation_prompt: bool,
    ) -> PyResult<Vec<u32>> {
        let options =
            RenderOptions::default().with_tools(tools).with_add_generation_prompt(add_generation_prompt);
        self.template()?.encode(self.tokenizer()?, &parse(messages)?, &options).map_err(errors::value)
    }

    /// The logits of every token, a new f32 array (tokens, vocab).
    #[pyo3(signature = (ids, kv="f32"))]
    fn logits<'py>(&self, py: Python<'py>, ids: Vec<u32>, kv: &str) -> PyResult<Bound<'py, PyArray2<f32>>> {
        self.check_ids(&ids)?;
        let kv = options::kv(Some(kv))?.unwrap_or(trike::KvPrecision::F32.into());
        let sides = [ids.len(), self.facts.vocab];
        let rows = self.ask(py, None, move |served, line| {
            let mut rows = Vec::with_capacity(sides[0] * sides[1]);
            let mut keep = |token, row: &[f32]| {
                rows.extend_from_slice(row);
                line.progress("logits", token + 1, sides[0]);
            };
            let kv = KvSpec::new(kv, ids.len().max(1));
            served.model.logits_with(&ids, &kv, &mut keep).map_err(errors::run)?;
            Ok(rows)
        })?;
        array(py, rows, sides)
    }

    /// The embedding of a text or of tokens: a new f32 array (hidden,) of unit length.
    #[pyo3(signature = (text, pooling))]
    fn _embed<'py>(
        &self,
        py: Python<'py>,
        text: Prompt,
        pooling: &str,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let pooling = options::pooling(pooling)?;
        let ids = match text {
            Prompt::Text(text) => self.tokenizer()?.encode_prompt(&text).map_err(errors::value)?,
            Prompt::Ids(ids) => ids,
        };
        self.check_ids(&ids)?;
        let vector =
            self.ask(py, None, move |served, _| served.model.embed(&ids, pooling).map_err(errors::run))?;
        Ok(PyArray1::from_vec(py, vector))
    }

    /// Perplexity of a text as a dict.
    #[pyo3(signature = (text, *, split=None, limit=None, context=None, kv=None, progress=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn perplexity<'py>(
        &self,
        py: Python<'py>,
        text: String,
        split: Option<&str>,
        limit: Option<usize>,
        context: Option<usize>,
        kv: Option<&str>,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let options = ScoreOptions::new(options::split(split, &text)?)
            .with_limit(limit)
            .with_context(context)
            .with_kv(options::kv(kv)?);
        let score = self.ask(py, progress.as_ref(), move |served, line| {
            let mut report = |done, total| line.progress("scoring", done, total);
            trike::eval::score(&*served.model, &text, &options, &mut report).map_err(errors::eval)
        })?;
        let dict = PyDict::new(py);
        dict.set_item("perplexity", score.perplexity)?;
        dict.set_item("nats", score.nats)?;
        dict.set_item("nats_error", score.nats_error)?;
        dict.set_item("bits_per_byte", score.bits_per_byte)?;
        dict.set_item("tokens", score.tokens)?;
        dict.set_item("bytes", score.bytes)?;
        dict.set_item("sequences", score.sequences)?;
        Ok(dict)
    }

    /// Bytes of weights, of keys and values for a sequence, and of activations, as a dict.
    #[pyo3(signature = (context=None, kv=None))]
    fn memory<'py>(
        &self,
        py: Python<'py>,
        context: Option<usize>,
        kv: Option<&str>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (kv, context) = (options::kv(kv)?, context.unwrap_or(self.facts.context));
        let plan = self.ask(py, None, move |served, _| {
            let kv = kv.unwrap_or(served.model.default_kv().into());
            Ok(served.model.memory(&KvSpec::new(kv, context)))
        })?;
        let dict = PyDict::new(py);
        dict.set_item("weights", plan.weights)?;
        dict.set_item("cache", plan.cache)?;
        dict.set_item("scratch", plan.scratch)?;
        dict.set_item("total", plan.total())?;
        Ok(dict)
    }
}

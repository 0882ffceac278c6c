//! The thread that owns a model.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use trike_core::{Bounds, OptionError};
use trike_llm::constraint::{Constraint, Grammar, GrammarCompiler};
use trike_llm::{Continuation, LlmError, Model, ModelConfig, Pooling, PreparedRequest, tokenizer::Tokenizer};
use trike_nn::{KV_PAGE, KvOptions, KvSpec};

use crate::active::{Active, Times, panicked};
use crate::request::OnEvent;
use crate::scheduler::Scheduler;
use crate::{EngineError, EngineOptions, Event, Metrics, Request, Slot, Ticket};

/// How often an idle engine looks for deadlines of requests.
const IDLE: Duration = Duration::from_millis(100);

/// Facts of the model that an [`Engine`] runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadedModel {
    /// Its file or directory.
    pub path: PathBuf,
    /// Its configuration.
    pub config: ModelConfig,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The name of the backend.
    pub backend: String,
    /// Maximum tokens of prompt and continuation.
    pub context: usize,
    /// Tokens of the longest prompt.
    pub longest_prompt: usize,
    /// Bytes of a page of keys and values.
    pub page_bytes: u64,
    /// Made when the first grammar comes.
    compiler: OnceLock<GrammarCompiler>,
}

impl LoadedModel {
    /// A grammar for texts that each token of `ends` may end. The vocabulary is prepared once.
    ///
    /// # Errors
    ///
    /// [`LlmError::Constraint`].
    pub fn compile(&self, grammar: &Grammar, ends: &[u32]) -> Result<Constraint, LlmError> {
        let compiler = match self.compiler.get() {
            Some(compiler) => compiler,
            None => {
                let compiler = GrammarCompiler::new(&self.tokenizer)?;
                self.compiler.get_or_init(|| compiler)
            }
        };
        Ok(compiler.compile(grammar, ends)?)
    }
}

/// A model that runs many requests at once, on a thread of its own. Dropping it ends all requests.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::sync::mpsc::channel;
/// use trike_engine::{Engine, EngineOptions, Event, Request};
/// use trike_llm::{DeviceChoice, GenerateOptions, open};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let engine = Engine::start(EngineOptions::default(), move || open(path, &DeviceChoice::Cpu))?;
/// let tokenizer = &engine.wait()?.tokenizer;
/// let (events, received) = channel();
/// for (number, prompt) in ["Once upon a time", "The big dog"].into_iter().enumerate() {
///     let options = GenerateOptions::default().with_max_tokens(8);
///     let events = events.clone();
///     engine.submit(Request::new(tokenizer.encode_prompt(prompt)?, tokenizer.eos(), options), move |event| {
///         if let Event::Finished(outcome) = event {
///             // Nobody may listen any more.
///             let _ = events.send((number, outcome));
///         }
///         ControlFlow::Continue(())
///     })?;
/// }
/// let mut finished: Vec<_> = received.iter().take(2).collect();
/// finished.sort_by_key(|(number, _)| *number);
/// assert!(finished.iter().all(|(_, outcome)| outcome.ids.len() == 8));
/// assert_eq!(engine.metrics().generated_tokens, 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Engine {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    options: EngineOptions,
    next: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

/// What the thread publishes.
#[derive(Debug, Default)]
struct Shared {
    model: OnceLock<LoadedModel>,
    /// Why there is no model.
    failure: OnceLock<EngineError>,
    /// Notified when either is set.
    loaded: Condvar,
    state: Mutex<State>,
    /// Requests that were submitted and have not ended.
    unfinished: AtomicUsize,
    draining: AtomicBool,
    stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    metrics: Metrics,
    slots: Vec<Slot>,
    /// Requests refused before they reached the thread.
    refused: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread is asked for.
enum Command {
    Submit {
        id: u64,
        request: Box<(Request, Option<Constraint>)>,
        times: Times,
        cancelled: Arc<AtomicBool>,
        on_event: OnEvent,
    },
    Embed {
        ids: Vec<u32>,
        pooling: Pooling,
        reply: Box<dyn FnOnce(Result<Vec<f32>, EngineError>) + Send>,
    },
    /// Look at the flags.
    Wake,
}

impl Engine {
    /// Starts the thread, which loads the model with `load`; [`wait`](Self::wait) waits for that.
    ///
    /// # Errors
    ///
    /// [`EngineError::Thread`].
    pub fn start(
        options: EngineOptions,
        load: impl FnOnce() -> Result<Box<dyn Model>, LlmError> + Send + 'static,
    ) -> Result<Self, EngineError> {
        let (commands, received) = channel();
        let shared = Arc::new(Shared::default());
        let (own, own_options) = (Arc::clone(&shared), options.clone());
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let run = || run(own_options, load, &received, &own);
            let ended = match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => EngineError::ShuttingDown,
                Ok(Err(error)) => error,
                Err(panic) => panicked(&*panic),
            };
            let guard = own.state();
            // Only the first reason counts.
            let _ = own.failure.set(ended);
            own.loaded.notify_all();
            drop(guard);
        });
        let thread = thread.map_err(|error| EngineError::Thread { reason: error.to_string() })?;
        Ok(Self { commands, shared, options, next: AtomicU64::new(1), thread: Some(thread) })
    }

    /// The model; `None` while it is being loaded.
    ///
    /// # Errors
    ///
    /// Why the engine does not run.
    pub fn model(&self) -> Result<Option<&LoadedModel>, EngineError> {
        match self.shared.failure.get() {
            Some(error) => Err(error.clone()),
            None => Ok(self.shared.model.get()),
        }
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    ///
    /// Why it cannot be loaded, or why the engine has ended.
    pub fn wait(&self) -> Result<&LoadedModel, EngineError> {
        let mut guard = self.shared.state();
        loop {
            if let Some(model) = self.model()? {
                return Ok(model);
            }
            guard = self.shared.loaded.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Submits a request. Its events are passed to `on_event` on the engine's thread, which waits for the call: send them on and return.
    /// `Break` cancels the request.
    ///
    /// # Errors
    ///
    /// [`EngineError::QueueFull`], [`EngineError::PromptTooLong`], [`EngineError::ShuttingDown`], [`EngineError::Option`] for options that
    /// are the engine's, a grammar that cannot be enforced, and why there is no model. Other errors are events.
    pub fn submit(
        &self,
        mut request: Request,
        on_event: impl FnMut(Event) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Ticket, EngineError> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(EngineError::ShuttingDown);
        }
        let kept = [
            ("kv", request.options.kv != KvOptions::default()),
            ("context", request.options.context.is_some()),
        ];
        for (field, is_set) in kept {
            if is_set {
                return Err(OptionError::Conflict { field, other: "the engine's own" }.into());
            }
        }
        let mut constraint = None;
        if let Some(model) = self.model()? {
            if request.ids.len() > model.longest_prompt {
                return Err(EngineError::PromptTooLong {
                    tokens: request.ids.len(),
                    room: model.longest_prompt,
                });
            }
            // Here and not on the engine's thread, where other requests would wait for it.
            if let Some(grammar) = request.options.grammar.take() {
                let compile = || model.compile(&grammar, &request.ends).map_err(EngineError::from);
                // A bug in the compiler of grammars must not end the caller.
                let compiled = catch_unwind(AssertUnwindSafe(compile));
                constraint = Some(compiled.unwrap_or_else(|panic| Err(panicked(&*panic)))?);
            }
        }
        let (most, queue) = (self.options.queue.saturating_add(self.options.sequences), self.options.queue);
        let unfinished = &self.shared.unfinished;
        let add = |count: usize| (count < most).then_some(count + 1);
        if unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            self.shared.state().refused += 1;
            return Err(EngineError::QueueFull { waiting: queue, limit: queue });
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let cancelled = Arc::new(AtomicBool::new(false));
        let ticket = Ticket { id, cancelled: Arc::clone(&cancelled) };
        let (shared, mut on_event) = (Arc::clone(&self.shared), on_event);
        let on_event = Box::new(move |event: Event| {
            if matches!(event, Event::Finished(_) | Event::Failed(_)) {
                shared.unfinished.fetch_sub(1, Ordering::Relaxed);
            }
            on_event(event)
        });
        let sent = self.send(Command::Submit {
            id,
            request: Box::new((request, constraint)),
            times: Times::new(),
            cancelled,
            on_event,
        });
        if sent.is_err() {
            self.shared.unfinished.fetch_sub(1, Ordering::Relaxed);
        }
        sent.map(|()| ticket)
    }

    /// Computes the embedding of a text between two steps, and passes it to `reply` on the engine's thread.
    ///
    /// # Errors
    ///
    /// [`EngineError::ShuttingDown`], and why there is no model. Other errors are passed to `reply`.
    pub fn embed(
        &self,
        ids: Vec<u32>,
        pooling: Pooling,
        reply: impl FnOnce(Result<Vec<f32>, EngineError>) + Send + 'static,
    ) -> Result<(), EngineError> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return Err(EngineError::ShuttingDown);
        }
        self.send(Command::Embed { ids, pooling, reply: Box::new(reply) })
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        self.commands.send(command).map_err(|_| match self.model() {
            Err(error) => error,
            Ok(_) => EngineError::ShuttingDown,
        })
    }

    /// What the engine has done and is doing.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let state = self.shared.state();
        let mut metrics = state.metrics.clone();
        metrics.refused += state.refused;
        metrics
    }

    /// What runs in each sequence.
    #[must_use]
    pub fn slots(&self) -> Vec<Slot> {
        self.shared.state().slots.clone()
    }

    /// Refuses new requests; those that were submitted go on.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    /// Whether a [draining](Self::drain) engine has ended all requests.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let is_idle = self.shared.unfinished.load(Ordering::Relaxed) == 0;
        self.shared.draining.load(Ordering::Relaxed) && (is_idle || self.model().is_err())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.drain();
        self.shared.stopping.store(true, Ordering::Relaxed);
        // The thread may have ended already.
        let _ = self.commands.send(Command::Wake);
        if let Some(thread) = self.thread.take() {
            // Its panic is in `failure`.
            let _ = thread.join();
        }
    }
}

/// Loads the model and runs requests until the engine is dropped.
fn run(
    options: EngineOptions,
    load: impl FnOnce() -> Result<Box<dyn Model>, LlmError>,
    commands: &Receiver<Command>,
    shared: &Shared,
) -> Result<(), EngineError> {
    let model = load()?;
    let model: &dyn Model = &*model;
    let spec = &model.config().spec;
    options.validate(spec.context)?;
    let context = options.context.unwrap_or(spec.context);
    let precision = options.kv.unwrap_or_else(|| model.default_kv());
    let kv = KvSpec::new(precision, context);
    let page_bytes = model.memory(&kv.with_capacity(KV_PAGE)).cache.max(1);
    let pages = |bytes: u64| usize::try_from(bytes / page_bytes).unwrap_or(usize::MAX);
    let limit = match options.memory {
        Some(bytes) => pages(bytes),
        None => {
            let free = trike_host::free_memory().into_iter().map(|(_, free)| free / 2).min();
            let all = options.sequences.saturating_mul(context.div_ceil(KV_PAGE));
            // A step needs at least one page.
            free.map_or(all, |free| all.min(pages(free)).max(1))
        }
    };
    if let Some(bytes) = options.memory {
        let (least, bytes) = (page_bytes as usize, usize::try_from(bytes).unwrap_or(usize::MAX));
        OptionError::check("memory", Bounds::at_least(least), bytes)?;
    }
    let batch = model.batch(&kv, options.sequences)?;
    let tokenizer = model.tokenizer()?;
    let mut scheduler = Scheduler::new(batch, options, context, limit);
    let loaded = LoadedModel {
        path: model.path().to_owned(),
        config: model.config().clone(),
        tokenizer: tokenizer.clone(),
        backend: model.backend(),
        context,
        longest_prompt: scheduler.longest_prompt(),
        page_bytes,
        compiler: OnceLock::new(),
    };
    publish(&mut scheduler, shared);
    {
        let _guard = shared.state();
        // It is set here only.
        let _ = shared.model.set(loaded);
        shared.loaded.notify_all();
    }
    while !shared.stopping.load(Ordering::Relaxed) {
        // Commands that are there; an idle engine waits for one.
        let mut next = match scheduler.is_idle() {
            true => match commands.recv_timeout(IDLE) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            },
            false => commands.try_recv().ok(),
        };
        while let Some(command) = next {
            match command {
                Command::Submit { id, request, times, cancelled, on_event } => {
                    let deadline = (request.0.deadline, times);
                    submit(&mut scheduler, (model, tokenizer), *request, (id, deadline, cancelled, on_event));
                }
                Command::Embed { ids, pooling, reply } => {
                    reply(model.embed(&ids, pooling).map_err(EngineError::from));
                }
                Command::Wake => {}
            }
            next = commands.try_recv().ok();
        }
        scheduler.step();
        publish(&mut scheduler, shared);
        scheduler.report();
    }
    scheduler.fail_all(&EngineError::ShuttingDown);
    publish(&mut scheduler, shared);
    scheduler.report();
    for command in commands.try_iter() {
        match command {
            Command::Submit { mut on_event, .. } => {
                // The request has ended, so `Break` has no effect.
                let _ = on_event(Event::Failed(EngineError::ShuttingDown));
            }
            Command::Embed { reply, .. } => reply(Err(EngineError::ShuttingDown)),
            Command::Wake => {}
        }
    }
    Ok(())
}

/// Makes the metrics and slots of this moment visible.
fn publish(scheduler: &mut Scheduler<'_>, shared: &Shared) {
    let (metrics, slots) = (scheduler.observe(), scheduler.slots());
    let mut state = shared.state();
    (state.metrics, state.slots) = (metrics, slots);
}

/// Makes a request one of the scheduler's, or says why it cannot be.
fn submit<'m>(
    scheduler: &mut Scheduler<'m>,
    (model, tokenizer): (&'m dyn Model, &'m Tokenizer),
    (request, constraint): (Request, Option<Constraint>),
    (id, deadline, cancelled, mut on_event): (
        u64,
        (Option<std::time::Instant>, Times),
        Arc<AtomicBool>,
        OnEvent,
    ),
) {
    let Request { ids, ends, options, .. } = request;
    let room = scheduler.longest_prompt();
    let tokens = ids.len();
    let text = || {
        if tokens > room {
            return Err(EngineError::PromptTooLong { tokens, room });
        }
        let prepared = PreparedRequest::of(model, ids, &ends, options)?;
        let text = Continuation::new(tokenizer, model.config().spec.vocab, &prepared)?;
        Ok(match constraint {
            Some(constraint) => text.with_constraint(constraint),
            None => text,
        })
    };
    // A bug in the compiler of grammars must not end other requests.
    let text = catch_unwind(AssertUnwindSafe(text)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    match text {
        Ok(text) => scheduler.submit(Active::new(id, text, deadline, cancelled, on_event)),
        Err(error) => {
            scheduler.metrics.failed += 1;
            // The request has ended, so `Break` has no effect.
            let _ = on_event(Event::Failed(error));
        }
    }
}

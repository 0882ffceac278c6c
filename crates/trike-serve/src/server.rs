//! The server: routes, keys, origins, the way it stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::watch;
use trike_engine::{Engine, EngineError};

use crate::app::App;
use crate::error::ApiError;
use crate::options::{ServeOptions, ServedModel};
use crate::{ServeError, routes};

/// How often a server that is stopping looks whether all answers were sent.
const STOPPING: Duration = Duration::from_millis(20);

/// Threads that render templates and compile grammars. Each keeps memory of its own.
const BLOCKING: usize = 8;

/// Tells a [`Server`] to stop.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// New requests are refused, and the server ends when the others have their answers.
    pub fn stop(&self) {
        // A server that has ended does not receive it.
        let _ = self.0.send(true);
    }
}

/// Waits for the model of a [`Server`].
#[derive(Clone, Debug)]
pub struct Waiter(Arc<App>);

impl Waiter {
    /// Waits until the model is loaded.
    ///
    /// # Errors
    ///
    /// Why it cannot be loaded.
    pub fn wait(self) -> Result<(), EngineError> {
        self.0.engine.wait().map(|_| ())
    }
}

/// A server that listens.
///
/// ```no_run
/// use trike_engine::{Engine, EngineOptions};
/// use trike_llm::{DeviceChoice, ModelFile, open};
/// use trike_serve::{ServeOptions, ServedModel, Server};
///
/// let file = ModelFile::open("model.gguf")?;
/// let template = file.chat_template(&file.tokenizer(None)?)?;
/// let model = ServedModel::new("my-model", template, file.generation_config()?);
/// let engine = Engine::start(EngineOptions::default(), || open("model.gguf", &DeviceChoice::Cpu))?;
/// let server = Server::bind(engine, model, ServeOptions::default())?;
/// println!("http://{}", server.address());
/// server.run()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Server {
    listener: std::net::TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<bool>,
}

impl Server {
    /// Listens on the address of the options. Connections are accepted by [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// [`ServeError::Bind`].
    pub fn bind(engine: Engine, model: ServedModel, options: ServeOptions) -> Result<Self, ServeError> {
        let address = options.address;
        let bind = |source| ServeError::Bind { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (started, start) = (since.as_secs(), since.as_nanos() as u64);
        let app = App {
            engine,
            model,
            options,
            started,
            start,
            answers: AtomicU64::new(0),
            format: OnceLock::new(),
        };
        Ok(Self { listener, address, app: Arc::new(app), stop: watch::channel(false).0 })
    }

    /// The address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells the server to stop, from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Waits for the model, on another thread.
    #[must_use]
    pub fn waiter(&self) -> Waiter {
        Waiter(Arc::clone(&self.app))
    }

    /// Serves requests until the server is [stopped](Self::stopper), or receives SIGTERM, and the last answer was sent.
    ///
    /// # Errors
    ///
    /// [`ServeError::Io`].
    pub fn run(self) -> Result<(), ServeError> {
        let Self { listener, app, stop, .. } = self;
        listener.set_nonblocking(true)?;
        // Handlers only wait; the model has its own threads.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(BLOCKING)
            .enable_all()
            .build()?;
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener)?;
            let mut stopped = stop.subscribe();
            let engine = Arc::clone(&app);
            let until = async move {
                tokio::select! {
                    // An error: the server is the last that could be told.
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                    () = terminated() => {}
                }
                engine.engine.drain();
                while !engine.engine.is_drained() {
                    tokio::time::sleep(STOPPING).await;
                }
            };
            axum::serve(listener, router(app)).with_graceful_shutdown(until).await
        })?;
        Ok(())
    }
}

/// Returns when the process is asked to end, as service managers do; never where that cannot be known.
async fn terminated() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut signals) = signal(SignalKind::terminate()) {
            signals.recv().await;
            return;
        }
    }
    std::future::pending::<()>().await;
}

fn router(app: Arc<App>) -> Router {
    let limit = DefaultBodyLimit::max(app.options.body_limit);
    let mut router = Router::new();
    for route in routes::all() {
        for path in route.paths {
            router = router.route(path, route.handler.clone());
        }
    }
    router
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(limit)
        .layer(from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

async fn unknown_route(method: Method, uri: Uri) -> ApiError {
    ApiError::not_found(format!("no route {method} {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::invalid(None, message).with_status(StatusCode::METHOD_NOT_ALLOWED)
}

/// Checks the key, and lets pages of the allowed origin read the answer.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let allowed = app.options.origin.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok());
    let is_question = request.method() == Method::OPTIONS && allowed.is_some();
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let is_open = matches!(request.uri().path(), "/health" | "/v1/health");
    let is_anthropic = request.uri().path().starts_with("/v1/messages");
    let mut response = if is_question {
        StatusCode::NO_CONTENT.into_response()
    } else if is_open || has_key(&app.options.keys, &request) {
        let response = next.run(request).await;
        with_error_object(response)
    } else {
        ApiError::unauthorized().into_response()
    };
    if is_anthropic && let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = error.into_anthropic();
    }
    if let Some(origin) = allowed {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        if is_question {
            let methods = HeaderValue::from_static("GET, POST, OPTIONS");
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            // Clients in browsers have headers of their own.
            let asked =
                asked.unwrap_or_else(|| HeaderValue::from_static("authorization, content-type, x-api-key"));
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
        }
    }
    response
}

/// The error object for what the framework refuses: a body over the limit, or one that ends early.
fn with_error_object(response: Response) -> Response {
    let status = response.status();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !status.is_client_error() || is_json {
        return response;
    }
    let message = match status {
        StatusCode::PAYLOAD_TOO_LARGE => "the body is larger than this server takes",
        _ => "the request cannot be read",
    };
    ApiError::invalid(None, message).with_status(status).into_response()
}

/// Whether a request has one of the keys, or none are needed. The time does not depend on how much of a key is right.
fn has_key(keys: &[String], request: &Request) -> bool {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let bearer = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let sent = bearer.or_else(|| header("x-api-key")).unwrap_or_default();
    let is_any =
        keys.iter().fold(0u8, |is_any, key| is_any | key.as_bytes().ct_eq(sent.as_bytes()).unwrap_u8());
    keys.is_empty() || is_any == 1
}

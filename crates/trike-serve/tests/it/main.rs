//! A server of the bundled model on loopback, spoken to in plain HTTP.

mod answers;
mod random;
mod refusals;
mod streams;
mod tools;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use trike_engine::{Engine, EngineOptions};
use trike_llm::{DeviceChoice, open};
use trike_serve::{ServeError, ServeOptions, ServedModel, Server, Stop};
use trike_text::chat::ChatTemplate;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

/// A running server, which is stopped when it is dropped.
struct Running {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Running {
    fn with(options: ServeOptions, engine: EngineOptions) -> Self {
        Self::with_template(TEMPLATE, options, engine)
    }

    fn with_template(template: &str, options: ServeOptions, engine: EngineOptions) -> Self {
        let engine = Engine::start(engine, || open(MODEL, &DeviceChoice::Cpu)).expect("a thread");
        engine.wait().expect("the bundled model");
        let template = ChatTemplate::from_source(template).expect("a template");
        let model = ServedModel::new("tiny", Some(template), Default::default());
        let server = Server::bind(engine, model, options.with_address(([127, 0, 0, 1], 0))).expect("a port");
        let (address, stop) = (server.address(), server.stopper());
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { address, stop, thread }
    }

    fn new() -> Self {
        Self::with(ServeOptions::default(), EngineOptions::default().with_sequences(4))
    }

    /// Sends a request in HTTP/1.0, whose answer ends with the connection.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        let mut head = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        write!(stream, "{head}\r\n{body}").expect("the server reads");
        stream
    }

    /// Status, headers and body of an answer.
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        let mut text = String::new();
        self.send(method, path, headers, body).read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, head.to_lowercase(), body.to_owned())
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.ask("GET", path, &[], "");
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = self.ask("POST", path, &[], &body.to_string());
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic").expect("the server ends");
        }
    }
}

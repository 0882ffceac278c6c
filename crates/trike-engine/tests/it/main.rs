//! Engines over the bundled model.

mod errors;
mod load;
mod prefixes;

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use trike_engine::{Engine, EngineError, EngineOptions, Event, Outcome, Request, Ticket};
use trike_llm::{DeviceChoice, GenerateOptions, open, sampler::SamplerConfig};

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(60);

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");

fn engine(options: EngineOptions) -> Engine {
    let engine = Engine::start(options, || open(MODEL, &DeviceChoice::Cpu)).expect("a thread");
    engine.wait().expect("the bundled model");
    engine
}

/// A request for `max_tokens` tokens after a prompt.
fn request(ids: Vec<u32>, max_tokens: usize, seed: u64) -> Request {
    let sampler = SamplerConfig::default().with_temperature(1.0).with_seed(seed);
    // Without end tokens, so that every text has its length.
    Request::new(ids, &[], GenerateOptions::default().with_max_tokens(max_tokens).with_sampler(sampler))
}

type Received = Receiver<Result<Outcome, EngineError>>;

/// Submits a request; its last event is received.
fn submit(engine: &Engine, request: Request) -> Result<(Ticket, Received), EngineError> {
    let (sender, receiver) = channel();
    let mut texts = String::new();
    let ticket = engine.submit(request, move |event| {
        let last = match event {
            Event::Started { .. } => return ControlFlow::Continue(()),
            Event::Text { text, .. } => {
                texts.push_str(&text);
                return ControlFlow::Continue(());
            }
            Event::Finished(outcome) => {
                assert_eq!(outcome.text, texts, "the pieces are the text");
                Ok(outcome)
            }
            Event::Failed(error) => Err(error),
        };
        // Some tests do not look.
        let _ = sender.send(last);
        ControlFlow::Continue(())
    })?;
    Ok((ticket, receiver))
}

/// Runs a request to its end.
fn run(engine: &Engine, request: Request) -> Result<Outcome, EngineError> {
    let (_, received) = submit(engine, request)?;
    received.recv_timeout(LONG).expect("an end")
}

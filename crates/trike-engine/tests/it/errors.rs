//! Requests that cannot run, are cancelled or end early.

use std::time::{Duration, Instant};

use trike_engine::{Engine, EngineError, EngineOptions, Request};
use trike_llm::{DeviceChoice, FinishReason, GenerateOptions, LlmError, constraint::Grammar, open};

use crate::{LONG, MODEL, engine, request, run, submit};

#[test]
fn what_cannot_run_is_refused_and_the_others_go_on() {
    let engine = engine(EngineOptions::default().with_context(100));
    let (_, other) = submit(&engine, request(vec![5; 10], 80, 1)).expect("taken");
    let refused = |request: Request| run(&engine, request).expect_err("refused");
    let long = refused(request(vec![5; 100], 1, 1));
    assert!(matches!(long, EngineError::PromptTooLong { tokens: 100, room: 99 }), "{long}");
    let empty = refused(request(Vec::new(), 1, 1));
    assert!(
        matches!(&empty, EngineError::Model(error) if matches!(**error, LlmError::Tokenizer(_))),
        "{empty}"
    );
    assert!(matches!(refused(request(vec![100_000], 1, 1)), EngineError::Model(_)));
    let grammar = Grammar::JsonSchema("{\"type\": 3}".to_owned());
    let wrong = GenerateOptions::default().with_grammar(grammar);
    let wrong = refused(Request::new(vec![5], &[], wrong));
    assert!(
        matches!(&wrong, EngineError::Model(error) if matches!(**error, LlmError::Constraint(_))),
        "{wrong}"
    );
    let own = GenerateOptions::default().with_context(50);
    assert!(matches!(refused(Request::new(vec![5], &[], own)), EngineError::Option(_)));
    assert_eq!(other.recv_timeout(LONG).expect("an end").expect("a text").ids.len(), 80);
    // A text that fills the context.
    let full = run(&engine, request(vec![5; 90], 80, 1)).expect("a text");
    assert_eq!((full.finish, full.ids.len()), (FinishReason::Context, 11));
}

#[test]
fn cancelled_and_late_requests_end_before_the_next_step() {
    let engine = engine(EngineOptions::default().with_sequences(1));
    let (running, first) = submit(&engine, request(vec![5; 10], 480, 1)).expect("taken");
    let (waiting, second) = submit(&engine, request(vec![6; 10], 480, 1)).expect("taken");
    let late = request(vec![7; 10], 480, 1).with_deadline(Instant::now());
    let (_, third) = submit(&engine, late).expect("taken");
    assert!(matches!(third.recv_timeout(LONG).expect("an end"), Err(EngineError::Deadline)));
    waiting.cancel();
    let ended = second.recv_timeout(LONG).expect("an end").expect("a text");
    assert_eq!((ended.finish, ended.ids.len()), (FinishReason::Cancelled, 0));
    running.cancel();
    let ended = first.recv_timeout(LONG).expect("an end").expect("a text");
    assert_eq!(ended.finish, FinishReason::Cancelled);
    assert!(ended.ids.len() < 480);
    let metrics = engine.metrics();
    assert_eq!((metrics.cancelled, metrics.failed, metrics.running), (2, 1, 0));
}

#[test]
fn a_full_queue_refuses_and_a_draining_engine_ends_what_it_has() {
    let engine = engine(EngineOptions::default().with_sequences(1).with_queue(2));
    let taken: Vec<_> =
        (0..3).map(|n| submit(&engine, request(vec![5; 10], 60, n)).expect("taken").1).collect();
    let full = submit(&engine, request(vec![5; 10], 60, 9)).map(|_| ());
    assert!(matches!(full, Err(EngineError::QueueFull { limit: 2, .. })), "{full:?}");
    assert_eq!(engine.metrics().refused, 1);
    engine.drain();
    assert!(matches!(run(&engine, request(vec![5], 1, 1)), Err(EngineError::ShuttingDown)));
    for received in taken {
        assert_eq!(received.recv_timeout(LONG).expect("an end").expect("a text").ids.len(), 60);
    }
    let start = Instant::now();
    while !engine.is_drained() && start.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(engine.is_drained());
}

#[test]
fn dropping_the_engine_fails_what_runs() {
    let engine = engine(EngineOptions::default().with_sequences(1));
    let running = submit(&engine, request(vec![5; 10], 480, 1)).expect("taken").1;
    let waiting = submit(&engine, request(vec![5; 10], 480, 1)).expect("taken").1;
    drop(engine);
    for received in [running, waiting] {
        assert!(matches!(received.recv_timeout(LONG).expect("an end"), Err(EngineError::ShuttingDown)));
    }
}

#[test]
fn an_engine_without_a_model_says_why() {
    let start = |options: EngineOptions, path: &'static str| {
        let engine = Engine::start(options, move || open(path, &DeviceChoice::Cpu)).expect("a thread");
        engine.wait().map(|_| ()).expect_err("no model")
    };
    let missing = start(EngineOptions::default(), "no such file");
    assert!(matches!(missing, EngineError::Model(_)), "{missing}");
    for options in [
        EngineOptions::default().with_sequences(0),
        EngineOptions::default().with_context(100_000),
        EngineOptions::default().with_memory(10),
        EngineOptions::default().with_prompt_share(1),
    ] {
        let wrong = start(options, MODEL);
        assert!(matches!(wrong, EngineError::Option(_)), "{wrong}");
    }
}

#[test]
fn embeddings_are_those_of_the_model() {
    let engine = engine(EngineOptions::default());
    let model = open(MODEL, &DeviceChoice::Cpu).expect("the bundled model");
    let (sender, received) = std::sync::mpsc::channel();
    let pooling = trike_llm::Pooling::Mean;
    engine.embed(vec![5, 6, 7], pooling, move |embedding| drop(sender.send(embedding))).expect("taken");
    let got = received.recv_timeout(LONG).expect("a reply").expect("an embedding");
    assert_eq!(got, model.embed(&[5, 6, 7], pooling).expect("an embedding"));
}

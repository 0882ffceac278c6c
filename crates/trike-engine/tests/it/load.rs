//! Results do not depend on what else runs.

use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::time::Duration;

use trike_engine::{Engine, EngineOptions, Event, Request};
use trike_llm::{DeviceChoice, open};
use trike_testkit::Rng;

use crate::{LONG, MODEL, engine, request, run, submit};

/// A text of random tokens that begins like one of a few others.
fn prompt(rng: &mut Rng, starts: &[Vec<u32>]) -> Vec<u32> {
    let start = &starts[rng.below(starts.len())];
    let mut ids = start[..rng.below(start.len() + 1)].to_vec();
    ids.extend((0..1 + rng.below(60)).map(|_| 3 + rng.below(500) as u32));
    ids
}

/// Two hundred requests in engines of many sizes, submitted at random moments, some with too little memory for all: each has the
/// tokens that it has alone, without sharing.
#[test]
fn two_hundred_requests_have_the_tokens_that_they_have_alone() {
    let mut rng = Rng::new(5);
    let starts: Vec<Vec<u32>> =
        (0..4).map(|_| (0..200).map(|_| 3 + rng.below(500) as u32).collect()).collect();
    let alone = engine(EngineOptions::default().with_sequences(1).with_reuse(false));
    let page = alone.wait().expect("loaded").page_bytes;
    let (mut reused, mut preempted) = (0, 0);
    for (sequences, pages, share) in [
        (2, 200, 64),
        (3, 8, 16),
        (5, 12, 40),
        (8, 14, 64),
        (16, 400, 100),
        (4, 7, 16),
        (6, 10, 33),
        (7, 16, 20),
    ] {
        let options = EngineOptions::default().with_sequences(sequences).with_memory(pages * page);
        let loaded = engine(options.with_prompt_share(share));
        let mut all = Vec::new();
        for _ in 0..25 {
            let ids = prompt(&mut rng, &starts);
            let (max_tokens, seed) = (1 + rng.below(40), rng.next_u64());
            let wanted: Request = request(ids, max_tokens, seed);
            let received = submit(&loaded, wanted.clone()).expect("taken").1;
            all.push((wanted, received));
            if rng.below(3) == 0 {
                std::thread::sleep(Duration::from_millis(rng.below(20) as u64));
            }
        }
        for (wanted, received) in all {
            let got = received.recv_timeout(LONG).expect("an end").expect("a text");
            let want = run(&alone, wanted).expect("a text");
            assert_eq!(got.ids, want.ids, "{} prompt tokens, {} of them reused", got.prompt, got.reused);
            assert_eq!(got.text, want.text);
        }
        let metrics = loaded.metrics();
        assert!(metrics.pages <= pages as usize, "{metrics:?}");
        assert_eq!((metrics.finished, metrics.running, metrics.waiting), (25, 0, 0));
        reused += metrics.reused_tokens;
        preempted += metrics.preempted;
    }
    assert!(reused > 1000 && preempted > 3, "{reused} tokens reused, {preempted} requests preempted");
}

/// A long prompt is read beside the tokens of others.
#[test]
fn a_long_prompt_does_not_stop_the_others() {
    let engine = engine(EngineOptions::default().with_sequences(2).with_prompt_share(16));
    let mut rng = Rng::new(8);
    let ids = |n: usize, rng: &mut Rng| -> Vec<u32> { (0..n).map(|_| 3 + rng.below(500) as u32).collect() };
    let short = request(ids(10, &mut rng), 400, 1);
    let (_, texts) = submit(&engine, short).expect("taken");
    while engine.metrics().generated_tokens < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (before, start) = (engine.metrics(), std::time::Instant::now());
    let long = run(&engine, request(ids(400, &mut rng), 1, 2)).expect("a text");
    assert!(start.elapsed() < LONG && long.ids.len() == 1);
    let after = engine.metrics();
    // 400 tokens in parts of 16: each step also made a token of the other text.
    let made = after.generated_tokens - before.generated_tokens;
    assert!(made >= 20, "{made} tokens beside 400 of a prompt");
    assert_eq!(texts.recv_timeout(LONG).expect("an end").expect("a text").ids.len(), 400);
}

/// A short prompt does not wait until a long one before it was read, nor does the long one wait for ever. All are submitted before the
/// model is there, so that the steps do not depend on time.
#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    for share in [16, 64] {
        let (go, wait) = channel();
        let load = move || {
            wait.recv().expect("the requests");
            open(MODEL, &DeviceChoice::Cpu)
        };
        let options = EngineOptions::default().with_sequences(4).with_prompt_share(share);
        let engine = Engine::start(options, load).expect("a thread");
        let mut rng = Rng::new(9);
        let mut ids = |n: usize| -> Vec<u32> { (0..n).map(|_| 3 + rng.below(500) as u32).collect() };
        let (sender, ended) = channel();
        for (name, prompt, max_tokens) in [("text", 10, 300), ("long", 450, 1), ("short", 12, 1)] {
            let sender = sender.clone();
            let told = move |event| {
                if matches!(event, Event::Finished(_) | Event::Failed(_)) {
                    // The test waits for all.
                    let _ = sender.send(name);
                }
                ControlFlow::Continue(())
            };
            engine.submit(request(ids(prompt), max_tokens, 1), told).expect("taken");
        }
        go.send(()).expect("the engine waits");
        let order: Vec<&str> = (0..3).map(|_| ended.recv_timeout(LONG).expect("an end")).collect();
        assert_eq!(order, ["short", "long", "text"]);
    }
}

//! Keys and values that texts share.

use trike_engine::EngineOptions;
use trike_testkit::Rng;

use crate::{LONG, engine, request, run, submit};

fn ids(n: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| 3 + rng.below(500) as u32).collect()
}

/// The next turn reads only what is new.
#[test]
fn a_conversation_is_read_once() {
    let engine = engine(EngineOptions::default());
    let mut conversation = ids(150, 1);
    let mut known = 0;
    for turn in 0..3 {
        let before = engine.metrics().prompt_tokens;
        let answer = run(&engine, request(conversation.clone(), 20, turn)).expect("an answer");
        assert_eq!(answer.reused, known, "turn {turn}");
        assert_eq!(engine.metrics().prompt_tokens - before, (conversation.len() - known) as u64);
        conversation.extend(&answer.ids);
        // All but the last token of an answer is run.
        known = conversation.len() - 1;
        conversation.extend(ids(30, 10 + turn));
    }
    // Another text reuses nothing.
    assert_eq!(run(&engine, request(ids(90, 7), 1, 0)).expect("a text").reused, 0);
}

/// Requests that arrive at once and begin alike hold the pages of their beginning once, and one of them reads it.
#[test]
fn clients_with_one_system_prompt_hold_its_pages_once() {
    let engine = engine(EngineOptions::default().with_sequences(50).with_context(400));
    let system = ids(256, 2);
    let clients: Vec<_> = (0..50)
        .map(|client| {
            let prompt = [system.clone(), ids(20, 100 + client)].concat();
            submit(&engine, request(prompt, 30, client)).expect("taken").1
        })
        .collect();
    let reused: Vec<usize> = clients
        .iter()
        .map(|client| client.recv_timeout(LONG).expect("an end").expect("a text").reused)
        .collect();
    assert_eq!(reused.iter().filter(|reused| **reused >= 256).count(), 49, "{reused:?}");
    let metrics = engine.metrics();
    assert_eq!(metrics.prompt_tokens, 256 + 50 * 20);
    // Four pages of the system prompt, and one for the rest of each client.
    assert_eq!(metrics.pages, 4 + 50);
}

#[test]
fn without_reuse_every_prompt_is_read() {
    let engine = engine(EngineOptions::default().with_reuse(false));
    for _ in 0..2 {
        assert_eq!(run(&engine, request(ids(100, 3), 2, 0)).expect("a text").reused, 0);
    }
    assert_eq!(engine.metrics().kept_pages, 0);
    // Prompts alone, without what was generated.
    let engine = crate::engine(EngineOptions::default().with_reuse_generated(false));
    let prompt = ids(100, 4);
    let first = run(&engine, request(prompt.clone(), 50, 0)).expect("a text");
    let second = [prompt, first.ids, ids(20, 5)].concat();
    assert_eq!(run(&engine, request(second, 1, 0)).expect("a text").reused, 100);
}

//! What grammars cost per token with a tokenizer: `cargo run --release -p trike-text --example grammar_cost -- TOKENIZER TOOLS.json`.
//!
//! TOOLS is a list of tools with `name` and `parameters`, such as `crates/trike-text/tests/data/tools.json`. Each tool is called once
//! with arguments of random allowed tokens; then a text is written beside which all tools may be called.
#![allow(clippy::print_stdout, reason = "its result")]

use std::time::{Duration, Instant};

use serde_json::Value;
use trike_text::{
    chat::ChatTemplate,
    constraint::{Constraint, GrammarCompiler},
    reply::{ReplyFormat, ReplyOptions, Tool, ToolChoice},
    tokenizer::Tokenizer,
};

/// Most tokens of a call.
const TOKENS: usize = 200;

/// Times of masks, sorted when they are printed.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn print(&mut self, what: &str) {
        self.0.sort();
        let at = |percent: usize| {
            self.0.get((self.0.len().saturating_sub(1)) * percent / 100).copied().unwrap_or_default()
        };
        let mean = self.0.iter().sum::<Duration>() / u32::try_from(self.0.len().max(1)).unwrap_or(1);
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        println!(
            "{what}: {} tokens, mask mean {:.0} us, median {:.0}, p95 {:.0}, p99 {:.0}, longest {:.0}",
            self.0.len(),
            us(mean),
            us(at(50)),
            us(at(95)),
            us(at(99)),
            us(at(100))
        );
    }
}

/// Writes random allowed tokens, or those of `text`.
fn write(
    constraint: &mut Constraint,
    tokenizer: &Tokenizer,
    text: Option<&[u32]>,
    times: &mut Times,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut state = 1u64;
    for at in 0..TOKENS {
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        let start = Instant::now();
        constraint.mask(&mut logits)?;
        let time = start.elapsed();
        let allowed: Vec<u32> =
            (0..).zip(&logits).filter(|(_, logit)| **logit == 0.0).map(|(id, _)| id).collect();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let id = match text {
            Some(text) => text.get(at).copied(),
            None => allowed.get((state >> 33) as usize % allowed.len().max(1)).copied(),
        };
        let Some(id) = id.filter(|id| !tokenizer.eos().contains(id)) else { break };
        let start = Instant::now();
        let is_over = constraint.accept(id)?;
        times.0.push(time + start.elapsed());
        if is_over {
            break;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [tokenizer, tools] = paths.as_slice() else { return Err("usage: TOKENIZER TOOLS.json".into()) };
    let tokenizer = Tokenizer::open(tokenizer)?;
    let list: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(tools)?)?;
    let tool =
        |tool: &Value| Tool::new(tool["name"].as_str().unwrap_or_default(), None, tool["parameters"].clone());
    let template = ChatTemplate::from_source("{% for m in messages %}{{ m.content }}{% endfor %}")?;
    let format = ReplyFormat::of(&template, &tokenizer);
    let start = Instant::now();
    let compiler = GrammarCompiler::new(&tokenizer)?;
    println!("{} tokens: prepared in {:.0} ms", tokenizer.vocab_size(), start.elapsed().as_secs_f64() * 1e3);
    let (mut calls, mut compiled, mut served) = (Times::default(), Times::default(), Vec::new());
    for tool in list.iter().map(tool) {
        let options = ReplyOptions::default().with_tools([tool.clone()]).with_choice(ToolChoice::Required);
        let Some(grammar) = format.grammar(&options) else { continue };
        let start = Instant::now();
        let Ok(mut constraint) = compiler.compile(&grammar, tokenizer.eos()) else { continue };
        compiled.0.push(start.elapsed());
        write(&mut constraint, &tokenizer, None, &mut calls)?;
        served.push(tool);
    }
    calls.print("calls");
    compiled.print("compilation (one of each tool)");
    let options = ReplyOptions::default().with_tools(served);
    if let Some(grammar) = format.grammar(&options) {
        let start = Instant::now();
        let mut constraint = compiler.compile(&grammar, tokenizer.eos())?;
        println!("all tools at once: compiled in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
        let text = "The model may call a tool at any time, but it goes on with its text, which has <tags> and {braces}. ".repeat(6);
        let mut times = Times::default();
        write(&mut constraint, &tokenizer, Some(&tokenizer.encode(&text, false)?), &mut times)?;
        times.print("text beside tools");
    }
    Ok(())
}

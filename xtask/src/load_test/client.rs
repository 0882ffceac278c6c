//! A client that reads a streamed completion and notes when its tokens come.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connect;

/// Words of prompts: the letters of numbers, so that any tokenizer has tokens for them.
const WORDS: &[&str] = &[
    "the", "dog", "ran", "home", "and", "saw", "a", "big", "tree", "with", "red", "birds", "in", "it", "but",
    "then",
];

/// A small generator (xorshift64*).
pub(super) struct Noise(pub(super) u64);

impl Noise {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A prompt that differs from others from its first word on.
pub(super) fn prompt(number: u64, words: usize) -> String {
    let mut noise = Noise(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let words: Vec<&str> = (0..words).map(|_| WORDS[(noise.next() >> 33) as usize % WORDS.len()]).collect();
    words.join(" ")
}

/// A finished request.
#[derive(Debug)]
pub(super) struct Answer {
    /// New tokens.
    pub(super) tokens: usize,
    /// To the first text.
    pub(super) first: Duration,
    /// To the end.
    pub(super) total: Duration,
    /// Between texts.
    pub(super) gaps: Vec<Duration>,
}

/// Whether the server has loaded its model.
pub(super) fn is_healthy(address: SocketAddr) -> bool {
    let Ok(mut stream) = connect(address) else { return false };
    let mut head = [0; 12];
    write!(stream, "GET /health HTTP/1.0\r\n\r\n").is_ok()
        && stream.read_exact(&mut head).is_ok()
        && head.ends_with(b" 200")
}

/// Tokens of a text that differs from others: bytes and letters, which every vocabulary has.
pub(super) fn ids(number: u64, count: usize) -> Vec<u32> {
    let mut noise = Noise(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (0..count).map(|_| 20 + ((noise.next() >> 33) % 400) as u32).collect()
}

/// Asks for `tokens` new tokens after a text or token ids, whatever the model says.
pub(super) fn ask(
    address: SocketAddr,
    prompt: impl Into<serde_json::Value>,
    tokens: usize,
) -> Result<Answer> {
    let prompt = prompt.into();
    // The random model may choose the end token at any time; both servers take a bias of `false` as never.
    let body = serde_json::json!({
        "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "stream": true, "logit_bias": [[1, false], [2, false]],
        "stream_options": { "include_usage": true },
    })
    .to_string();
    let start = Instant::now();
    let mut stream = connect(address)?;
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let (mut made, mut times) = (0, Vec::new());
    let mut lines = BufReader::new(stream).lines();
    let status = lines.next().context("no answer")??;
    for line in lines {
        let line = line?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let Ok(event) = serde_json::from_str::<serde_json::Value>(data) else { continue };
        if let Some(count) = event["usage"]["completion_tokens"].as_u64() {
            made = count as usize;
        }
        if event["choices"][0]["text"].as_str().is_some_and(|new| !new.is_empty()) {
            times.push(start.elapsed());
        }
    }
    ensure!(status.contains(" 200"), "the server answered {status}");
    let total = start.elapsed();
    ensure!(!times.is_empty() && made > 0, "no text");
    let gaps = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    Ok(Answer { tokens: made, first: times[0], total, gaps })
}

//! Bytes, speed and direction of one exchange of each codec: `cargo run --release -p trike-comm --example codecs`.
//!
//! Speeds are per core, in bytes of the f32 gradient per second: encoding and decoding one message, and a whole exchange of one
//! rank with itself. The cosine of one step is no measure of quality, since the residual is sent later; it is printed for
//! comparison with codecs without error feedback.
#![expect(clippy::print_stdout, reason = "an example prints its figures")]

use std::time::Instant;

use trike_comm::{Codec, CodecConfig, Threads};

/// The tensors of a gradient: a matrix, and the vector of a norm.
const SHAPES: [[usize; 2]; 2] = [[2048, 2048], [1, 2048]];
const LEN: usize = 2049 * 2048;
/// Number of exchanges, of which the fastest counts; the first one is discarded, since it allocates the memory.
const STEPS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Sums of uniform numbers are nearly normal; their fifth power has long tails, as gradients do.
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5
    };
    let normal: Vec<f32> = (0..LEN).map(|_| (0..6).map(|_| uniform()).sum()).collect();
    let tailed: Vec<f32> = normal.iter().map(|x| x.powi(5)).collect();
    // Low-rank columns and rows, plus noise of the same size.
    let patterns: Vec<Vec<f32>> = (0..8).map(|_| (0..2048).map(|_| uniform()).collect()).collect();
    let low: Vec<f32> = (0..LEN)
        .map(|i| {
            let of = |k: usize| patterns[2 * k][i / 2048 % 2048] * patterns[2 * k + 1][i % 2048];
            (0..4).map(of).sum::<f32>() + 0.24 * normal[i]
        })
        .collect();
    println!(
        "{:<14}{:>9}{:>13}{:>13}{:>15}{:>9}{:>12}{:>10}",
        "codec", "smaller", "encode GB/s", "decode GB/s", "exchange GB/s", "normal", "long tails", "low rank"
    );
    let names = ["ternary", "sign", "top 2 %", "DeMo", "rank 4", "SparseLoCo", "sketch"];
    for (name, config) in names.into_iter().zip(CodecConfig::DEFAULTS) {
        let mut cosines = Vec::new();
        for gradient in [&normal, &tailed, &low] {
            let mut mean = gradient.clone();
            config.build(&SHAPES)?.exchange(&Threads::new(1)[0], &mut mean)?;
            cosines.push(cosine(gradient, &mean));
        }
        let mut codec = config.build(&SHAPES)?;
        let exchange = exchange_seconds(&mut *codec, &tailed)?;
        let smaller = 4.0 * LEN as f64 / codec.sent_bytes(0, 2) as f64;
        let speed = |seconds: f64| format!("{:.2}", 4e-9 * LEN as f64 / seconds);
        // Codecs of two rounds have no standalone message.
        let [encode, decode] = message_seconds(config, &tailed)?
            .map_or_else(|| ["-".to_owned(), "-".to_owned()], |seconds| seconds.map(speed));
        println!(
            "{name:<14}{smaller:>8.1}x{encode:>13}{decode:>13}{:>15}{:>9.3}{:>12.3}{:>10.3}",
            speed(exchange),
            cosines[0],
            cosines[1],
            cosines[2]
        );
    }
    Ok(())
}

fn exchange_seconds(codec: &mut dyn Codec, gradient: &[f32]) -> Result<f64, Box<dyn std::error::Error>> {
    let comm = &Threads::new(1)[0];
    let mut best = f64::MAX;
    for step in 0..STEPS {
        let mut mean = gradient.to_vec();
        let start = Instant::now();
        codec.exchange(comm, &mut mean)?;
        if step > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

fn message_seconds(
    config: CodecConfig,
    gradient: &[f32],
) -> Result<Option<[f64; 2]>, Box<dyn std::error::Error>> {
    let mut codec = match config.build_message(&SHAPES) {
        Ok(codec) => codec,
        Err(trike_comm::CommError::Rounds { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let (mut times, mut sum) = ([f64::MAX; 2], vec![0.0; LEN]);
    for step in 0..STEPS {
        let start = Instant::now();
        let message = codec.encode(gradient)?;
        let encoded = start.elapsed().as_secs_f64();
        sum.fill(0.0);
        let start = Instant::now();
        codec.add(0, &message, 1.0, &mut sum)?;
        if step > 0 {
            times = [times[0].min(encoded), times[1].min(start.elapsed().as_secs_f64())];
        }
    }
    Ok(Some(times))
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

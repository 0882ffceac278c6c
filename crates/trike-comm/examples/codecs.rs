//! Bytes, speed and direction of one message of each codec: `cargo run --release -p trike-comm --example codecs`.
//!
//! The direction of one step is not what counts: the rest is sent later. It is here for comparison with codecs that keep nothing.
#![expect(clippy::print_stdout, reason = "an example prints its figures")]

use std::time::Instant;

use trike_comm::CodecConfig;

/// Elements of a gradient.
const LEN: usize = 1 << 22;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Sums of uniform numbers are nearly normal; their fifth power has long tails, as gradients do.
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5
    };
    let normal: Vec<f32> = (0..LEN).map(|_| (0..6).map(|_| uniform()).sum()).collect();
    let tailed: Vec<f32> = normal.iter().map(|x| x.powi(5)).collect();
    println!(
        "{:<24}{:>10}{:>14}{:>14}{:>12}{:>12}",
        "codec", "smaller", "encode GB/s", "decode GB/s", "normal", "long tails"
    );
    let share = 0.02;
    let mut sum = vec![0.0; LEN];
    for (name, codec) in
        [("ternary", CodecConfig::Ternary), ("top 2 %", CodecConfig::TopK { share, momentum: 0.0 })]
    {
        let (mut times, mut bytes, mut cosines) = ([f64::MAX; 2], 0, Vec::new());
        for gradient in [&normal, &tailed] {
            let mut codec = codec.build(LEN)?;
            // The first message is that of the gradient alone; the others are timed, with memory that is there already.
            for step in 0..4 {
                let start = Instant::now();
                let message = codec.encode(gradient)?;
                let encoded = start.elapsed().as_secs_f64();
                sum.fill(0.0);
                let start = Instant::now();
                codec.add(0, &message, 1.0, &mut sum)?;
                let added = start.elapsed().as_secs_f64();
                if step == 0 {
                    cosines.push(cosine(gradient, &sum));
                } else {
                    times = [times[0].min(encoded), times[1].min(added)];
                }
                bytes = message.len();
            }
        }
        let [encode, decode] = times.map(|seconds| 4e-9 * LEN as f64 / seconds);
        let smaller = 4.0 * LEN as f64 / bytes as f64;
        println!(
            "{name:<24}{smaller:>9.1}x{encode:>14.2}{decode:>14.2}{:>12.3}{:>12.3}",
            cosines[0], cosines[1]
        );
    }
    Ok(())
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

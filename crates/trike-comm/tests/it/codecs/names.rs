//! Single messages, and sums of trits.

use trike_comm::codec::{GradientCompressor, MessageCodec, TernaryCodec, TernaryGradientAccumulator};
use trike_comm::{CodecConfig, CommError};
use trike_testkit::{Rng, assert_all_near, assert_near};

use super::{cosine, normals, saved};

#[test]
fn a_compressor_gives_the_figures_of_its_messages() {
    for config in CodecConfig::DEFAULTS {
        let Ok(mut compressor) = GradientCompressor::new(config, &[[50, 100]]) else {
            assert_eq!(config, CodecConfig::LOW_RANK);
            continue;
        };
        let gradient = normals(1, 5000);
        let compressed = compressor.compress(&gradient).expect("a message");
        assert_eq!(compressed.stats.bytes, compressed.message.len());
        assert_near!(compressed.stats.ratio, 20_000.0 / compressed.message.len() as f64, rel = 1e-12);
        let back = compressor.decompress(&compressed.message).expect("a gradient");
        assert_near!(compressed.stats.cosine, cosine(&gradient, &back), abs = 1e-6, "{config:?}");
        // The residual follows in the second message.
        let second = compressor.compress(&[0.0; 5000]).expect("a message");
        assert_near!(second.stats.cosine, 0.0, abs = 0.0);
        let more = compressor.decompress(&second.message).expect("a gradient");
        assert!(cosine(&gradient, &more) > 0.0, "{config:?}");
        let before = saved(compressor.codec());
        let wrong = [f32::NAN; 5000];
        assert_eq!(compressor.compress(&wrong), Err(CommError::NonFinite { rank: 0 }));
        assert!(matches!(compressor.compress(&wrong[1..]), Err(CommError::Length { .. })));
        assert!(compressor.decompress(&compressed.message[1..]).is_err());
        assert_eq!(saved(compressor.codec()), before, "{config:?}");
    }
    let mut empty = GradientCompressor::new(CodecConfig::Ternary, &[]).expect("a codec");
    let stats = empty.compress(&[]).expect("a message").stats;
    assert_near!(stats.ratio, 1.0, abs = 0.0);
    assert_near!(stats.cosine, 0.0, abs = 0.0);
}

/// Messages whose chunk scales differ by many orders of magnitude, including zeros and subnormal numbers.
fn messages(len: usize) -> Vec<Vec<u8>> {
    let message = |(rank, size): (u64, f32)| {
        let gradient: Vec<f32> = normals(rank, len).iter().map(|x| x * size).collect();
        TernaryCodec::new(len).encode(&gradient).expect("a message")
    };
    let sizes = [1.0, 1.1, 1e-4, 3e7, 0.0, 1e-40, 1e-45, 1e30, 0.9, 1e-9];
    (1..).zip(sizes).map(message).collect()
}

#[test]
fn trits_have_the_same_sum_in_every_order() {
    for len in [0, 1, 6, 4095, 4096, 10_000] {
        let mut messages: Vec<(usize, Vec<u8>)> = messages(len).into_iter().enumerate().collect();
        let mut rng = Rng::new(1);
        let mut sums = Vec::new();
        for _ in 0..8 {
            for i in (1..messages.len()).rev() {
                messages.swap(i, rng.below(i + 1));
            }
            let mut sum = TernaryGradientAccumulator::new(len);
            for (rank, message) in &messages {
                sum.add(*rank, message).expect("trits");
            }
            sums.push((sum.mean().expect("a mean"), sum));
        }
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{len} elements");
        assert_eq!(sums[0].1.count(), messages.len() as u64);
    }
}

#[test]
fn the_mean_of_trits_is_that_of_their_numbers() {
    let len = 5000;
    for messages in [messages(len), messages(len)[..2].to_vec(), messages(len)[5..7].to_vec()] {
        let codec = TernaryCodec::new(len);
        let mut sum = TernaryGradientAccumulator::new(len);
        let mut want = vec![0f64; len];
        for (rank, message) in messages.iter().enumerate() {
            let mut values = vec![0.0; len];
            codec.add(rank, message, 1.0, &mut values).expect("a gradient");
            want.iter_mut().zip(&values).for_each(|(sum, x)| *sum += f64::from(*x));
            sum.add(rank, message).expect("trits");
        }
        let want: Vec<f32> = want.iter().map(|sum| (sum / messages.len() as f64) as f32).collect();
        assert_all_near!(&sum.mean().expect("a mean"), &want, rel = 1e-6);
    }
}

#[test]
fn wrong_trits_change_no_sum() {
    let messages = messages(5000);
    let mut sum = TernaryGradientAccumulator::new(5000);
    assert!(matches!(sum.mean(), Err(CommError::Length { expected: 1, got: 0, .. })));
    sum.add(0, &messages[0]).expect("trits");
    let before = sum.clone();
    let mut wrong = messages[1].clone();
    // In the second chunk, after the first could have been added.
    *wrong.last_mut().expect("bytes") = 243;
    assert!(matches!(sum.add(3, &wrong), Err(CommError::Damaged { rank: 3, .. })));
    assert!(matches!(sum.add(3, &wrong[1..]), Err(CommError::Cut { rank: 3, .. })));
    assert_eq!(sum, before);
    assert_eq!((sum.len(), sum.count()), (5000, 1));
}

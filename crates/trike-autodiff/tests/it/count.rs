//! Counting executor: the same memory as a tape with values.

use std::borrow::Borrow;

use trike_autodiff::{
    BitLinearSpec, Buffers, Count, Counted, EngineMemory, EngineOps, GradError, Operand, ProductPrecision,
    Tape, TapeEngine, TernarizeSpec, TernaryScale,
};
use trike_cpu::{AttentionSpec, Cpu, GatedActivation, RopePairing, Store};
use trike_trit::{Granularity, GroupSize};

/// A step of all operations; returns the bytes of its buffers.
fn step<E: TapeEngine>(engine: &E) -> Result<usize, GradError> {
    const WIDTH: usize = 32;
    const TOKENS: usize = 12;
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 8, scale: 0.3, window: None };
    let weights = TernarizeSpec::default()
        .with_granularity(Granularity::Group(GroupSize::G32))
        .with_scale(TernaryScale::LeastSquares);
    let how = BitLinearSpec { weights, ..BitLinearSpec::default() };
    let ones = |len: usize| engine.upload(vec![1.0; len]);
    let (table, norm) = (ones(50 * WIDTH)?, ones(WIDTH)?);
    let [q, k, v, bias] = [ones(WIDTH * WIDTH)?, ones(16 * WIDTH)?, ones(16 * WIDTH)?, ones(16)?];
    let rope = engine.rope_table(vec![1.0; 4], RopePairing::Halves, 7)?;
    let rotary = engine.rotary(&rope, (0..TOKENS as u32).collect())?;
    let segments = engine.segments(vec![TOKENS - 5, 5])?;
    let buffers = Buffers::default();
    for _ in 0..2 {
        let mut tape = Tape::new(engine, &buffers);
        let [table, norm] = [&table, &norm].map(|x| tape.parameter(x.borrow(), WIDTH));
        let (table, norm) = (table?, norm?);
        let [q, k, v] = [&q, &k, &v].map(|x| tape.parameter(x.borrow(), WIDTH));
        let bias = tape.parameter(bias.borrow(), 16)?;
        let rounded = tape.int8_weights(table, 32)?;
        let h = tape.embed(rounded, &vec![1; TOKENS].into())?;
        let x = tape.rms_norm(h, norm, 1e-5)?;
        let (q, k) = (tape.bit_linear(x, q?, None, &how)?, tape.bit_linear(x, k?, Some(bias), &how)?);
        let v = tape.linear(x, v?, None)?;
        let (q, k) = (tape.rope(q, 4, &rotary)?, tape.rope(k, 2, &rotary)?);
        let x = tape.attention(&spec, [q, k, v], &segments)?;
        let x = tape.add(h, x)?;
        let x = tape.gated(x, h, GatedActivation::SiLu)?;
        let x = tape.scale(x, 0.5)?;
        let targets = [Some(3); TOKENS];
        let loss = tape.distill(x, rounded, &targets, [1.0, 1.0], |_, out| engine.fill(out, 0.0))?;
        let mut gradients = tape.backward(loss.var)?;
        buffers.give(gradients.take(table).expect("it is a parameter"));
    }
    Ok(buffers.bytes())
}

#[test]
fn a_tape_without_numbers_takes_the_memory_of_one_with_them() {
    let count = Count::new(1, 1);
    let want = step(&Cpu::new(1).expect("a thread")).expect("a step");
    assert_eq!(step(&count).expect("a step"), want);
    let Counted { held, peak, logits } = count.counted();
    // Two chunks of logits: its own and the teacher's.
    assert_eq!((held, logits), (0, 2 * 4 * 12 * 50));
    assert!(peak > want as u64);
}

#[test]
fn batches_at_once_are_counted_together() {
    let count = Count::new(4, 3);
    let before = count.allocate(10).expect("a length");
    let mut sum = Vec::new();
    count
        .each_alone(vec![5, 7], Count::allocate, |tensor| sum.push(tensor.expect("a length")))
        .expect("two batches");
    assert_eq!(count.counted(), Counted { held: 40 + 3 * 48, peak: 40 + 3 * 48, logits: 0 });
    drop(sum);
    assert_eq!(count.counted().held, 40);
    drop(before);
    assert_eq!(count.counted().held, 0);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let count = Count::new(1, 1);
    let (a, mut out) = (count.allocate(6).expect("a length"), count.allocate(3).expect("a length"));
    let matrix = Operand::new(&a, 3).expect("two rows");
    let refused = count.matmul(matrix, matrix.t(), &mut out, 0, Store::Overwrite, ProductPrecision::F32);
    assert!(matches!(refused, Err(GradError::Length { expected: 4, got: 3, .. })), "{refused:?}");
    let refused = count.copy(&a, &mut out);
    assert!(matches!(refused, Err(GradError::Length { expected: 6, got: 3, .. })), "{refused:?}");
}

//! Values and gradients.

use std::borrow::Borrow;
use std::ops::Range;

use trike_autodiff::{BitLinearSpec, GradError, Tape, TapeEngine, TernarizeSpec, TernaryScale, Var};
use trike_core::{AttentionSpec, GatedActivation, RopePairing};
use trike_cpu::Cpu;
use trike_testkit::{Rng, assert_all_near};
use trike_trit::{Granularity, GroupSize};

use super::{Function, both_ways, engines, normals};

/// An operation, with sizes that do not fill a tile.
#[derive(Clone, Debug)]
enum Case {
    Linear {
        bias: bool,
    },
    /// The same parameter twice: both gradients are added.
    Square,
    Norm,
    Rope(RopePairing),
    Attention {
        spec: AttentionSpec,
        lengths: Vec<usize>,
    },
    Gated(GatedActivation),
    Add,
    Scale,
    Embed(Vec<u32>),
    Int8(Option<GroupSize>),
    Int8Weights,
    Ternarize(TernarizeSpec),
    Learned(Granularity),
    BitLinear,
    CrossEntropy(Vec<Option<u32>>),
    Divergence,
    Distill(Vec<Option<u32>>),
}

/// Writes the same logits in every call.
fn teacher<'e, E: TapeEngine>(
    tape: &Tape<'e, E>,
    head: Var,
) -> impl FnMut(Range<usize>, &mut E::View) -> Result<(), GradError> + use<'e, E> {
    let (engine, vocab) = (tape.engine(), tape.shape(head).expect("of this tape").0);
    move |rows, out| {
        let values = Rng::new(4).normals(rows.end * vocab);
        let logits = engine.upload(values[rows.start * vocab..].to_vec())?;
        engine.copy(logits.borrow(), out)
    }
}

impl Function for Case {
    fn run<E: TapeEngine>(&self, tape: &mut Tape<'_, E>, p: &[Var]) -> Result<Var, GradError> {
        Ok(match self {
            Self::Linear { bias } => tape.linear(p[0], p[1], bias.then(|| p[2]))?,
            Self::Square => tape.linear(p[0], p[0], None)?,
            Self::Norm => tape.rms_norm(p[0], p[1], 1e-5)?,
            Self::Rope(pairing) => {
                let engine = tape.engine();
                let table = engine.rope_table(vec![1.0, 0.3, 0.07], *pairing, 4)?;
                // Longer than the table.
                let rotary = engine.rotary(&table, vec![0, 1, 2, 9, 0, 1, 5])?;
                tape.rope(p[0], 3, &rotary)?
            }
            Self::Attention { spec, lengths } => {
                let segments = tape.engine().segments(lengths.clone())?;
                tape.attention(spec, [p[0], p[1], p[2]], &segments)?
            }
            Self::Gated(activation) => tape.gated(p[0], p[1], *activation)?,
            Self::Add => tape.add(p[0], p[1])?,
            Self::Scale => tape.scale(p[0], -0.7)?,
            Self::Embed(ids) => tape.embed(p[0], &ids.as_slice().into())?,
            Self::Int8(group) => tape.int8_activations(p[0], *group)?,
            Self::Int8Weights => tape.int8_weights(p[0], 32)?,
            Self::Ternarize(how) => tape.ternarize(p[0], how)?,
            Self::Learned(granularity) => {
                let how = TernarizeSpec::default().with_granularity(*granularity);
                tape.ternarize(p[0], &how.with_scale(TernaryScale::Learned(p[1])))?
            }
            Self::BitLinear => tape.bit_linear(p[0], p[1], None, &BitLinearSpec::default())?,
            Self::CrossEntropy(targets) => tape.cross_entropy(p[0], p[1], targets, 0.3)?.var,
            Self::Divergence => {
                let teacher = teacher(tape, p[1]);
                tape.divergence(p[0], p[1], 0.3, teacher)?.var
            }
            Self::Distill(targets) => {
                let teacher = teacher(tape, p[1]);
                tape.distill(p[0], p[1], targets, [0.2, 0.9], teacher)?.var
            }
        })
    }
}

fn attention(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> AttentionSpec {
    AttentionSpec { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window }
}

/// Cases with the shapes of their parameters.
fn cases() -> Vec<(Case, Vec<(usize, usize)>)> {
    let targets = |count: u32, vocab: u32| (0..count).map(move |i| (i % 5 != 3).then_some(i * 7 % vocab));
    let mut all = vec![
        (Case::Linear { bias: false }, vec![(1, 1), (1, 1)]),
        (Case::Linear { bias: true }, vec![(67, 35), (130, 35), (1, 130)]),
        // More steps than one accumulation chain has.
        (Case::Linear { bias: true }, vec![(600, 300), (5, 300), (1, 5)]),
        (Case::Square, vec![(13, 70)]),
        (Case::Norm, vec![(5, 97), (1, 97)]),
        // Per head, in more than one slab of rows.
        (Case::Norm, vec![(90, 21), (1, 7)]),
        (Case::Rope(RopePairing::Adjacent), vec![(7, 21)]),
        (Case::Rope(RopePairing::Halves), vec![(7, 21)]),
        (Case::Gated(GatedActivation::SiLu), vec![(3, 131), (3, 131)]),
        (Case::Gated(GatedActivation::SquaredReLu), vec![(3, 131), (3, 131)]),
        (Case::Add, vec![(3, 51), (3, 51)]),
        (Case::Scale, vec![(3, 51)]),
        (Case::Embed(vec![4, 0, 4, 4, 2, 0]), vec![(6, 37)]),
        (Case::Int8(None), vec![(5, 150)]),
        (Case::Int8(Some(GroupSize::G32)), vec![(5, 150)]),
        (Case::Int8Weights, vec![(6, 77)]),
        (Case::BitLinear, vec![(9, 67), (11, 67)]),
        (Case::CrossEntropy(targets(9, 203).collect()), vec![(9, 21), (203, 21)]),
        // Several chunks of logits.
        (Case::CrossEntropy(targets(140, 17_001).collect()), vec![(140, 3), (17_001, 3)]),
        (Case::Divergence, vec![(9, 21), (203, 21)]),
        (Case::Distill(targets(9, 203).collect()), vec![(9, 21), (203, 21)]),
    ];
    for (spec, lengths) in [
        (attention(1, 1, 1, None), vec![1]),
        (attention(4, 2, 12, None), vec![7, 1, 30]),
        (attention(3, 1, 80, None), vec![19, 4]),
        (attention(2, 2, 7, Some(4)), vec![3, 25]),
        (attention(6, 2, 16, Some(100)), vec![40]),
    ] {
        let tokens = lengths.iter().sum();
        let [q, kv] = [spec.heads, spec.kv_heads].map(|heads| (tokens, heads * spec.head_dim));
        all.push((Case::Attention { spec, lengths }, vec![q, kv, kv]));
    }
    let groups = [
        Granularity::Tensor,
        Granularity::Row,
        Granularity::Group(GroupSize::G32),
        Granularity::Group(GroupSize::G128),
    ];
    for granularity in groups {
        for scale in [TernaryScale::AbsMean, TernaryScale::LeastSquares] {
            let how = TernarizeSpec::default().with_granularity(granularity).with_scale(scale);
            all.push((Case::Ternarize(how), vec![(9, 75)]));
            all.push((Case::Ternarize(how.with_lambda(0.3).with_clip(1.5)), vec![(9, 75)]));
            // Too long for shared memory and for one cube, as one group or per row.
            all.push((Case::Ternarize(how), vec![(2, 2300)]));
        }
        let count = match granularity {
            Granularity::Tensor => 1,
            granularity => 9 * granularity.groups_per_row(75),
        };
        all.push((Case::Learned(granularity), vec![(9, 75), (1, count)]));
    }
    all
}

#[test]
fn values_and_gradients_are_those_of_the_host() {
    let cpu = Cpu::new(2).expect("threads");
    for engine in engines() {
        for (case, shapes) in cases() {
            let mut parameters = normals(3, &shapes);
            if matches!(case, Case::Learned(_)) {
                parameters[1].0.iter_mut().for_each(|scale| *scale = 0.5 + scale.abs());
            }
            let want = both_ways(&cpu, &parameters, &case).expect("it runs");
            let got = both_ways(&engine, &parameters, &case).expect("it runs");
            assert_eq!(got.len(), want.len(), "{case:?}");
            for (part, (got, want)) in got.iter().zip(&want).enumerate() {
                let largest = want.iter().fold(0f32, |m, v| m.max(v.abs()));
                assert_all_near!(got, want, abs = 1e-5 * largest + 1e-30, "{case:?} {shapes:?} part {part}");
            }
            let again = both_ways(&engine, &parameters, &case).expect("it runs");
            assert!(got == again, "{case:?} is not deterministic");
        }
    }
}

/// Non-finite values propagate through every operation that rounds or compares.
#[test]
fn not_a_number_stays() {
    for engine in engines() {
        for (case, shapes) in cases() {
            if matches!(case, Case::Embed(_)) {
                continue;
            }
            let mut parameters = normals(3, &shapes);
            parameters[0].0[0] = f32::NAN;
            let got = both_ways(&engine, &parameters, &case).expect("it runs");
            assert!(got[0].iter().any(|v| v.is_nan()), "{case:?}");
        }
    }
}

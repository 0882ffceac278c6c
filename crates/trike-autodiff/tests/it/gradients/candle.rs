//! Candle's primitive operations as an oracle.

use std::sync::Arc;

use candle_core::{D, Device, Tensor, Var as CandleVar};
use trike_autodiff::{BitLinearSpec, GradError, Rotary, Tape, TernarizeSpec, TernaryScale, Var};
use trike_cpu::{AttentionSpec, GatedActivation, RopePairing, RopeTable};
use trike_testkit::{Rng, assert_close};
use trike_trit::{Granularity, GroupSize};

use super::{Parameters, backward, cpus, normals, upstream};

type Candle = candle_core::Result<Tensor>;

/// Compares outputs and gradients, and checks that their bits do not depend on the number of threads.
#[track_caller]
fn check(
    parameters: &Parameters,
    f: impl Fn(&mut Tape<'_>, &[Var]) -> Result<Var, GradError>,
    oracle: impl Fn(&[Tensor]) -> Candle,
) {
    let (output, gradients) = oracle_gradients(parameters, oracle).expect("the oracle runs");
    let mut first = None;
    for cpu in cpus() {
        let got = backward(&cpu, parameters, upstream, &f);
        assert_close(&got.0, &output, 1e-5);
        for (got, want) in got.1.iter().zip(&gradients) {
            assert_close(got, want, 1e-4);
        }
        assert_eq!(first.get_or_insert_with(|| got.clone()), &got, "threads change nothing");
    }
}

fn oracle_gradients(
    parameters: &Parameters,
    oracle: impl Fn(&[Tensor]) -> Candle,
) -> candle_core::Result<(Vec<f32>, Vec<Vec<f32>>)> {
    let vars: Vec<CandleVar> = parameters
        .iter()
        .map(|(values, cols)| CandleVar::from_slice(values, (values.len() / cols, *cols), &Device::Cpu))
        .collect::<Result<_, _>>()?;
    let tensors: Vec<Tensor> = vars.iter().map(|var| var.as_tensor().clone()).collect();
    let y = oracle(&tensors)?.flatten_all()?;
    let dy = Tensor::from_vec(upstream(y.elem_count()), y.dims(), &Device::Cpu)?;
    let gradients = (&y * dy)?.sum_all()?.backward()?;
    let each = vars.iter().map(|var| gradients.get(var).expect("a gradient").flatten_all()?.to_vec1());
    Ok((y.to_vec1()?, each.collect::<Result<_, _>>()?))
}

#[test]
fn linear() {
    // More rows than a tile, more columns than a panel.
    let parameters = normals(1, &[(33, 70), (45, 70), (1, 45)]);
    let oracle = |p: &[Tensor]| p[0].matmul(&p[1].t()?)?.broadcast_add(&p[2]);
    check(&parameters, |tape, p| tape.linear(p[0], p[1], Some(p[2])), oracle);
}

#[test]
fn rms_norm() {
    let oracle = |p: &[Tensor]| {
        let r = (p[0].sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
        p[0].broadcast_div(&r)?.broadcast_mul(&p[1])
    };
    check(&normals(2, &[(9, 37), (1, 37)]), |tape, p| tape.rms_norm(p[0], p[1], 1e-5), oracle);
}

#[test]
fn gated() {
    let parameters = normals(3, &[(9, 37), (9, 37)]);
    let silu = |p: &[Tensor]| p[0].silu()? * &p[1];
    check(&parameters, |tape, p| tape.gated(p[0], p[1], GatedActivation::SiLu), silu);
    let squared = |p: &[Tensor]| p[0].relu()?.sqr()? * &p[1];
    check(&parameters, |tape, p| tape.gated(p[0], p[1], GatedActivation::SquaredReLu), squared);
}

/// Heads of `dim` as `heads x tokens x dim`, rotated by halves if there are positions.
fn heads(x: &Tensor, heads: usize, dim: usize, base: Option<f32>) -> Candle {
    let tokens = x.dim(0)?;
    let x = x.reshape((tokens, heads, dim))?.transpose(0, 1)?.contiguous()?;
    let Some(base) = base else { return Ok(x) };
    let half = dim / 2;
    let angle = |t: usize, i: usize| t as f32 * base.powf(-2.0 * i as f32 / dim as f32);
    let angles: Vec<f32> = (0..tokens).flat_map(|t| (0..half).map(move |i| angle(t, i))).collect();
    let angles = Tensor::from_vec(angles, (1, tokens, half), x.device())?;
    let (sin, cos) = (angles.sin()?, angles.cos()?);
    let (a, b) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    Tensor::cat(&[first, (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?], 2)
}

#[test]
fn rope_and_attention() {
    // More queries than are held at once.
    let (lengths, dim) = ([70, 9], 8);
    let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: dim, scale: 0.35, window: None };
    let rotary = Rotary {
        table: Arc::new(RopeTable::new(dim, 100.0).expect("even")),
        pairing: RopePairing::Halves,
        positions: lengths.iter().flat_map(|&n| 0..n as u32).collect(),
    };
    let oracle = |p: &[Tensor]| {
        let mut documents = Vec::new();
        for (first, n) in [(0, lengths[0]), (lengths[0], lengths[1])] {
            let part = |i: usize| p[i].narrow(0, first, n);
            let (q, k) = (heads(&part(0)?, 4, dim, Some(100.0))?, heads(&part(1)?, 2, dim, Some(100.0))?);
            let v = heads(&part(2)?, 2, dim, None)?;
            let shared =
                |x: Tensor| x.unsqueeze(1)?.expand((2, 2, n, dim))?.reshape((4, n, dim))?.contiguous();
            let (k, v) = (shared(k)?, shared(v)?);
            let hidden =
                (0..n).flat_map(|i| (0..n).map(move |j| if j > i { f32::NEG_INFINITY } else { 0.0 }));
            let mask = Tensor::from_iter(hidden, &Device::Cpu)?.reshape((1, n, n))?;
            let scores = (q.matmul(&k.t()?)? * 0.35)?.broadcast_add(&mask)?;
            let e = scores.broadcast_sub(&scores.max_keepdim(2)?.detach())?.exp()?;
            let p = e.broadcast_div(&e.sum_keepdim(2)?)?;
            documents.push(p.matmul(&v)?.transpose(0, 1)?.reshape((n, 4 * dim))?);
        }
        Tensor::cat(&documents, 0)
    };
    let lengths: Arc<[usize]> = lengths.into();
    check(
        &normals(4, &[(79, 32), (79, 16), (79, 16)]),
        |tape, p| {
            let (q, k) = (tape.rope(p[0], 4, &rotary)?, tape.rope(p[1], 2, &rotary)?);
            tape.attention(&spec, [q, k, p[2]], &lengths)
        },
        oracle,
    );
}

fn log_softmax(z: &Tensor) -> Candle {
    let z = z.broadcast_sub(&z.max_keepdim(1)?.detach())?;
    z.broadcast_sub(&z.exp()?.sum_keepdim(1)?.log()?)
}

#[test]
fn embedding_and_cross_entropy() {
    // Logits of several chunks.
    let (tokens, vocabulary) = (70, 20_000);
    let mut rng = Rng::new(5);
    let ids: Arc<[u32]> = (0..tokens).map(|_| rng.below(vocabulary) as u32).collect();
    let targets: Vec<Option<u32>> =
        (0..tokens).map(|t| (t % 3 > 0).then(|| rng.below(vocabulary) as u32)).collect();
    let oracle = |p: &[Tensor]| {
        let h = p[0].index_select(&Tensor::new(&ids[..], &Device::Cpu)?, 0)?;
        let rows: Vec<u32> = (0..tokens as u32).filter(|t| targets[*t as usize].is_some()).collect();
        let wanted: Vec<u32> = targets.iter().flatten().copied().collect();
        let z = h.matmul(&p[0].t()?)?.index_select(&Tensor::new(&rows[..], &Device::Cpu)?, 0)?;
        let wanted = Tensor::from_vec(wanted, (rows.len(), 1), &Device::Cpu)?;
        log_softmax(&z)?.gather(&wanted, 1)?.sum_all()? * -0.02
    };
    check(
        &normals(6, &[(vocabulary, 4)]),
        |tape, p| {
            let h = tape.embed(p[0], &ids)?;
            let loss = tape.cross_entropy(h, p[0], &targets, 0.02)?;
            assert_eq!(loss.rows, targets.iter().flatten().count());
            Ok(loss.var)
        },
        oracle,
    );
}

#[test]
fn divergence() {
    let teacher = Rng::new(7).normals(6 * 11);
    let oracle = |p: &[Tensor]| {
        let target = log_softmax(&Tensor::from_slice(&teacher, (6, 11), &Device::Cpu)?)?;
        let q = log_softmax(&p[0].matmul(&p[1].t()?)?)?;
        (target.exp()? * (target - q)?)?.sum_all()? * 0.5
    };
    check(
        &normals(8, &[(6, 5), (11, 5)]),
        |tape, p| {
            let loss = tape.divergence(p[0], p[1], 0.5, |rows, out| {
                out.copy_from_slice(&teacher[rows.start * 11..rows.end * 11]);
                Ok(())
            });
            Ok(loss?.var)
        },
        oracle,
    );
}

#[test]
fn distillation() {
    let teacher = Rng::new(11).normals(6 * 11);
    let targets = [Some(3), None, Some(10), None, Some(0), Some(3)];
    let oracle = |p: &[Tensor]| {
        let rows = Tensor::new(&[0u32, 2, 4, 5], &Device::Cpu)?;
        let target =
            log_softmax(&Tensor::from_slice(&teacher, (6, 11), &Device::Cpu)?)?.index_select(&rows, 0)?;
        let q = log_softmax(&p[0].matmul(&p[1].t()?)?)?.index_select(&rows, 0)?;
        let wanted = Tensor::from_iter(targets.into_iter().flatten(), &Device::Cpu)?.reshape((4, 1))?;
        let entropy = (q.gather(&wanted, 1)?.sum_all()? * -0.25)?;
        let divergence = (target.exp()? * (target - q)?)?.sum_all()? * 0.5;
        entropy + divergence?
    };
    check(
        &normals(12, &[(6, 5), (11, 5)]),
        |tape, p| {
            let loss = tape.distill(p[0], p[1], &targets, [0.25, 0.5], |rows, out| {
                out.copy_from_slice(&teacher[rows.start * 11..rows.end * 11]);
                Ok(())
            })?;
            assert_eq!(loss.rows, 4);
            let sum = (0.25 * loss.cross_entropy + 0.5 * loss.divergence) as f32;
            assert_eq!(tape.value(loss.var)?, [sum]);
            Ok(loss.var)
        },
        oracle,
    );
}

/// `w + lambda (q - w)` with the straight-through gradient of the identity.
fn straight_through(w: &Tensor, groups: (usize, usize), lambda: f64) -> Candle {
    let parts = w.reshape(groups)?;
    let s = parts.abs()?.mean_keepdim(1)?.maximum(1e-30)?;
    let q = parts.broadcast_div(&s)?.round()?.clamp(-1f32, 1f32)?.broadcast_mul(&s)?.reshape(w.shape())?;
    w + ((q - w)? * lambda)?.detach()
}

#[test]
fn bit_linear() {
    let group = Granularity::Group(GroupSize::G32);
    for (granularity, groups) in
        [(Granularity::Tensor, (1, 640)), (Granularity::Row, (10, 64)), (group, (20, 32))]
    {
        for lambda in [0.25, 1.0] {
            let how = TernarizeSpec::default().with_granularity(granularity).with_lambda(lambda);
            let how = BitLinearSpec { weights: how, ..BitLinearSpec::default() };
            let oracle = |p: &[Tensor]| {
                let a = (p[0].abs()?.max_keepdim(1)? / 127.0)?;
                let q = p[0].broadcast_div(&a)?.round()?.broadcast_mul(&a)?;
                let x = (&p[0] + (q - &p[0])?.detach())?;
                x.matmul(&straight_through(&p[1], groups, f64::from(lambda))?.t()?)
            };
            check(
                &normals(9, &[(7, 64), (10, 64)]),
                |tape, p| tape.bit_linear(p[0], p[1], None, &how),
                oracle,
            );
        }
    }
}

#[test]
fn learned_scales() {
    let mut parameters = normals(10, &[(6, 32), (1, 6)]);
    parameters[1].0.iter_mut().for_each(|s| *s = 0.5 + s.abs());
    let oracle = |p: &[Tensor]| {
        // Clamped before rounding, autodiff gives the gradient of the scale.
        let s = p[1].t()?;
        let inner = p[0].broadcast_div(&s)?.clamp(-1f32, 1f32)?;
        let q = (&inner + (inner.round()? - &inner)?.detach())?;
        q.broadcast_mul(&s)
    };
    // The oracle clips the gradient of the weights by clamping.
    check(
        &parameters,
        |tape, p| {
            let how = TernarizeSpec::default().with_granularity(Granularity::Row).with_clip(1.0);
            tape.ternarize(p[0], &how.with_scale(TernaryScale::Learned(p[1])))
        },
        oracle,
    );
}

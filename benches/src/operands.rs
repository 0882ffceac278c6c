//! Operands of the operations without weights, and their expected results.

use std::hint::black_box;

use anyhow::{Result, ensure};
use half::f16;
use trike_bench::Attention;
use trike_cpu::{Cpu, CpuOps, KvData, KvView};
use trike_popcount::{BitCounter, PlaneMatrix, PlaneVector, TritOps, TritPlanes};
use trike_testkit::Rng;

use crate::expected::{BOUND, INT16_BOUND};
use crate::operation::{HEADS, Operation, Work};

/// Number of distinct rows of a trit matrix; generating more would dominate the run time. Prime, so that reading a wrong row
/// of a block of rows gives a different result.
const DIFFERENT: usize = 61;
/// Fraction of nonzero trits: about a third of each value.
const DENSITY: f32 = 0.66;

/// Inputs of an [`Operation`].
pub struct Operands {
    work: Work,
    held: Held,
}

enum Held {
    Dot(PlaneVector, PlaneVector),
    Scores(PlaneMatrix, Vec<PlaneMatrix>),
    Bundle(Vec<PlaneVector>),
    /// Queries, and keys with values.
    Attention(Vec<f32>, Vec<[Vec<f16>; 2]>),
}

/// Output of a call; each operation uses one field, and the others are empty.
pub(crate) struct Output {
    sums: Vec<i32>,
    trits: PlaneVector,
    floats: Vec<f32>,
}

impl Output {
    fn values(&self) -> Vec<f64> {
        let sums = self.sums.iter().map(|&sum| f64::from(sum));
        let trits = self.trits.to_trits().into_iter().map(f64::from);
        sums.chain(trits).chain(self.floats.iter().map(|&x| f64::from(x))).collect()
    }
}

impl Operands {
    /// Random operands, with `copies` copies of the matrix or KV cache if the operation has one.
    ///
    /// # Errors
    ///
    /// If a kernel rejects the shape, which does not happen for the catalogue.
    pub fn new(operation: &Operation, copies: usize, rng: &mut Rng) -> Result<Self> {
        let mut vector = |trits| PlaneVector::from_trits(&rng.trits(trits, DENSITY));
        let held = match operation.work {
            Work::Dot { trits } => Held::Dot(vector(trits)?, vector(trits)?),
            Work::Scores { rows, trits } => {
                let mut query = PlaneMatrix::new(trits)?;
                query.push(vector(trits)?.view())?;
                let different = (0..DIFFERENT).map(|_| vector(trits)).collect::<Result<Vec<_>, _>>()?;
                let mut stored = PlaneMatrix::with_capacity(rows, trits)?;
                for row in 0..rows {
                    stored.push(different[row % DIFFERENT].view())?;
                }
                Held::Scores(query, vec![stored; copies])
            }
            Work::Bundle { vectors, trits } => {
                Held::Bundle((0..vectors).map(|_| vector(trits)).collect::<Result<_, _>>()?)
            }
            Work::Attention(Attention { tokens, positions, .. }) => {
                let q = rng.normals(tokens * HEADS.heads * HEADS.head_dim);
                let mut cached = || -> Vec<f16> {
                    let values = rng.normals(HEADS.kv_heads * HEADS.head_dim * positions);
                    values.into_iter().map(f16::from_f32).collect()
                };
                Held::Attention(q, vec![[cached(), cached()]; copies])
            }
        };
        Ok(Self { work: operation.work, held })
    }

    /// An output buffer, filled with values that are never a correct result.
    pub(crate) fn output(&self) -> Result<Output> {
        let (sums, trits, floats) = match self.work {
            Work::Dot { .. } => (1, 0, 0),
            Work::Scores { rows, .. } => (rows, 0, 0),
            Work::Bundle { trits, .. } => (0, trits, 0),
            Work::Attention(Attention { tokens, .. }) => (0, 0, tokens * HEADS.heads * HEADS.head_dim),
        };
        let trits = PlaneVector::from_trits(&vec![1; trits])?;
        Ok(Output { sums: vec![i32::MIN; sums], trits, floats: vec![f32::NAN; floats] })
    }

    /// One call, with copy `turn` (modulo their number) of the matrix or cache.
    pub(crate) fn call(&self, cpu: &Cpu, turn: usize, out: &mut Output) -> Result<()> {
        match &self.held {
            Held::Dot(a, b) => {
                let sum = cpu.trit_dot(black_box(a.view()), black_box(b.view()))?;
                out.sums.fill(sum);
                Ok(())
            }
            Held::Scores(query, stored) => {
                Ok(cpu.trit_matmul(query, &stored[turn % stored.len()], &mut out.sums)?)
            }
            Held::Bundle(vectors) => {
                let views: Vec<TritPlanes<'_>> = vectors.iter().map(PlaneVector::view).collect();
                let mut counter = BitCounter::new(out.trits.len())?;
                counter.add_all(cpu, &views)?;
                Ok(counter.majority(cpu, 0, out.trits.view_mut())?)
            }
            Held::Attention(q, caches) => {
                let [k, v] = &caches[turn % caches.len()];
                let capacity = k.len() / (HEADS.kv_heads * HEADS.head_dim);
                let kv = KvView { k: KvData::F16(k), v: KvData::F16(v), capacity };
                let first = capacity - q.len() / (HEADS.heads * HEADS.head_dim);
                Ok(cpu.attention(&HEADS.spec(), q, first, kv, &mut out.floats)?)
            }
        }
    }

    /// Compares the result of one call with the exact one: trits and integers for equality; for attention, some heads of some
    /// tokens to within [`BOUND`] (prefill: [`INT16_BOUND`]) times the largest value. All values must be finite.
    ///
    /// # Errors
    ///
    /// The index and both values of the first mismatch.
    pub fn check(&self, cpu: &Cpu) -> Result<()> {
        let mut out = self.output()?;
        self.call(cpu, 0, &mut out)?;
        self.judge(&out.values())
    }

    fn judge(&self, values: &[f64]) -> Result<()> {
        let expected = self.expected();
        let largest = expected.iter().fold(0f64, |m, &(_, value)| m.max(value.abs()));
        let bound = match &self.held {
            Held::Attention(q, _) if q.len() > HEADS.heads * HEADS.head_dim => INT16_BOUND * largest,
            Held::Attention(..) => BOUND * largest,
            _ => 0.0,
        };
        for (at, want) in expected {
            let got = values[at];
            // Written so that NaN fails.
            ensure!((got - want).abs() <= bound, "wrong result at index {at}: expected {want}, got {got}");
        }
        ensure!(values.iter().all(|value| value.is_finite()), "expected finite results");
        Ok(())
    }

    /// Indices and values of the expected result.
    fn expected(&self) -> Vec<(usize, f64)> {
        let dot = |a: &[i8], b: &[i8]| -> f64 {
            a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum::<i32>().into()
        };
        let values: Vec<f64> = match &self.held {
            Held::Dot(a, b) => vec![dot(&a.to_trits(), &b.to_trits())],
            Held::Scores(query, stored) => {
                let trits = |m: &PlaneMatrix, row| m.row(row).map_or(Vec::new(), TritPlanes::to_trits);
                let query = trits(query, 0);
                let known: Vec<f64> =
                    (0..DIFFERENT).map(|row| dot(&query, &trits(&stored[0], row))).collect();
                (0..stored[0].rows()).map(|row| known[row % DIFFERENT]).collect()
            }
            Held::Bundle(vectors) => {
                let mut sums = vec![0i32; vectors[0].len()];
                for vector in vectors {
                    sums.iter_mut().zip(vector.to_trits()).for_each(|(sum, trit)| *sum += i32::from(trit));
                }
                sums.iter().map(|sum| f64::from(sum.signum())).collect()
            }
            Held::Attention(q, caches) => return attended(q, &caches[0]),
        };
        values.into_iter().enumerate().collect()
    }
}

/// Some heads of some tokens, by the formula `softmax(q k^T scale) v` in f64.
fn attended(q: &[f32], [k, v]: &[Vec<f16>; 2]) -> Vec<(usize, f64)> {
    let d = HEADS.head_dim;
    let (tokens, positions) = (q.len() / (HEADS.heads * d), k.len() / (HEADS.kv_heads * d));
    let mut sampled = vec![0, 1, tokens / 2, tokens - 1];
    sampled.retain(|&token| token < tokens);
    sampled.dedup();
    let mut values = Vec::new();
    for token in sampled {
        for head in [0, HEADS.heads / 2, HEADS.heads - 1] {
            let at = (token * HEADS.heads + head) * d;
            let kv_head = head * HEADS.kv_heads / HEADS.heads;
            let row = |all: &'_ [f16], p: usize| -> Vec<f64> {
                all[(kv_head * positions + p) * d..][..d].iter().map(|&x| f64::from(x)).collect()
            };
            let (mut sum, mut total) = (vec![0f64; d], 0f64);
            for p in HEADS.spec().span(positions - tokens + token) {
                let score: f64 = row(k, p).iter().zip(&q[at..][..d]).map(|(k, &q)| k * f64::from(q)).sum();
                let weight = (score * f64::from(HEADS.spec().scale)).exp();
                total += weight;
                sum.iter_mut().zip(row(v, p)).for_each(|(sum, v)| *sum += weight * v);
            }
            values.extend(sum.iter().enumerate().map(|(i, sum)| (at + i, sum / total)));
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::OPERATIONS;

    #[test]
    fn a_wrong_answer_and_none_are_found() {
        let cpu = Cpu::new(1).expect("a thread");
        for operation in OPERATIONS {
            let name = operation.problem();
            let operands = Operands::new(operation, 2, &mut Rng::new(3)).expect("of the catalogue");
            operands.check(&cpu).expect(&name);
            let mut out = operands.output().expect("room");
            assert!(operands.judge(&out.values()).is_err(), "{name}: nothing was written");
            operands.call(&cpu, 1, &mut out).expect("the other copy");
            let values = out.values();
            operands.judge(&values).expect(&name);
            for at in [0, values.len() - 1] {
                for wrong in [1.0, f64::NAN] {
                    let mut values = values.clone();
                    values[at] += wrong;
                    assert!(operands.judge(&values).is_err(), "{name}: {wrong} more at {at}");
                }
            }
        }
    }
}

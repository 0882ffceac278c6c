//! Causal attention over a ring of keys and values.

use std::ops::Range;

use half::f16;

use crate::error::{CpuError, Result, check_len, check_range, check_rows};
use crate::isa::with_kernels;
use crate::kernels::{Element, Kernels, Loop, fold};
use crate::math::exp;
use crate::pool::Cpu;

/// What is attended, beside the numbers.
///
/// Query head `h` reads key/value head `h / (heads / kv_heads)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// What scores are multiplied with, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Positions that a query sees, itself included; `None` means all before it.
    pub window: Option<usize>,
}

/// Keys or values, `[kv_heads][capacity][head_dim]`.
#[derive(Clone, Copy, Debug)]
pub enum KvData<'a> {
    /// As computed.
    F32(&'a [f32]),
    /// Half the bytes.
    F16(&'a [f16]),
}

impl KvData<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::F16(v) => v.len(),
        }
    }
}

/// A ring of keys and values: position `p` lies in slot `p % capacity` of each head.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    /// Keys.
    pub k: KvData<'a>,
    /// Values.
    pub v: KvData<'a>,
    /// Slots of each head.
    pub capacity: usize,
}

impl Attention {
    /// The positions that the query at `position` sees.
    #[must_use]
    pub fn span(&self, position: usize) -> Range<usize> {
        let end = position.saturating_add(1);
        end.saturating_sub(self.window.unwrap_or(end))..end
    }

    /// Tokens of the query, after everything was checked.
    fn validate(&self, q: &[f32], first_position: usize, kv: &KvView<'_>, out: &[f32]) -> Result<usize> {
        check_range("heads of attention", 1, 1 << 20, self.heads)?;
        check_range("key/value heads of attention", 1, self.heads, self.kv_heads)?;
        check_range("head_dim of attention", 1, 1 << 20, self.head_dim)?;
        check_range("window of attention", 1, usize::MAX, self.window.unwrap_or(1))?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(CpuError::Heads { heads: self.heads, kv_heads: self.kv_heads });
        }
        let tokens = check_rows("queries of attention", self.heads * self.head_dim, q.len())?;
        check_len("output of attention", q.len(), out.len())?;
        let overflow = CpuError::Shape { what: "ring of attention", rows: kv.capacity, cols: self.head_dim };
        let len = (self.kv_heads * self.head_dim).checked_mul(kv.capacity).ok_or(overflow)?;
        check_len("keys of attention", len, kv.k.len())?;
        check_len("values of attention", len, kv.v.len())?;
        // The last query's position plus one must be countable as well.
        check_range("first position of attention", 0, usize::MAX / 2, first_position)?;
        if tokens > 0 {
            let needed = first_position + tokens - self.span(first_position).start;
            if needed > kv.capacity {
                return Err(CpuError::KvCapacity { needed, capacity: kv.capacity });
            }
        }
        Ok(tokens)
    }
}

impl Cpu {
    /// Softmax attention of `m` queries at consecutive positions from `first_position`; `q` and `out` are
    /// `m x heads x head_dim`.
    ///
    /// The query at position `p` sees positions `max(0, p + 1 - window)..=p`, all of which must be in the ring already
    /// (its own included). Scores, their maximum, exponentials and sums are f32, in two passes.
    ///
    /// # Errors
    ///
    /// [`CpuError::Heads`], [`CpuError::Range`], [`CpuError::NotMultiple`] and [`CpuError::Length`] for shapes that do not
    /// fit, [`CpuError::KvCapacity`] when the ring cannot hold every position that is seen.
    ///
    /// ```
    /// use trike_cpu::{Attention, Cpu, KvData, KvView};
    ///
    /// let problem = Attention { heads: 2, kv_heads: 1, head_dim: 2, scale: 1.0, window: None };
    /// // Two slots; equal keys, so every query averages the values that it sees.
    /// let (k, v) = ([1.0, 0.0, 1.0, 0.0], [1.0, 2.0, 3.0, 4.0]);
    /// let kv = KvView { k: KvData::F32(&k), v: KvData::F32(&v), capacity: 2 };
    /// let mut out = [f32::NAN; 8];
    /// Cpu::new(1)?.attention(&problem, &[1.0; 8], 0, kv, &mut out)?;
    /// assert_eq!(out, [1.0, 2.0, 1.0, 2.0, 2.0, 3.0, 2.0, 3.0]);
    /// # Ok::<(), trike_cpu::CpuError>(())
    /// ```
    pub fn attention(
        &self,
        problem: &Attention,
        q: &[f32],
        first_position: usize,
        kv: KvView<'_>,
        out: &mut [f32],
    ) -> Result<()> {
        let tokens = problem.validate(q, first_position, &kv, out)?;
        let job = Job { problem, q, first_position, capacity: kv.capacity };
        let tasks = job.cut(tokens, out, self);
        with_kernels!(self.isa(), kernels => self.pool().run(tasks, |(first, out)| match (kv.k, kv.v) {
            (KvData::F32(k), KvData::F32(v)) => job.run(kernels, k, v, first, out),
            (KvData::F16(k), KvData::F16(v)) => job.run(kernels, k, v, first, out),
            (KvData::F32(k), KvData::F16(v)) => job.run(kernels, k, v, first, out),
            (KvData::F16(k), KvData::F32(v)) => job.run(kernels, k, v, first, out),
        }));
        Ok(())
    }
}

/// A validated problem with its queries.
struct Job<'a> {
    problem: &'a Attention,
    q: &'a [f32],
    first_position: usize,
    capacity: usize,
}

impl Job<'_> {
    /// Cuts the (token, head) items into one contiguous share a thread, of about the same number of seen positions.
    fn cut<'o>(&self, tokens: usize, out: &'o mut [f32], cpu: &Cpu) -> Vec<(usize, &'o mut [f32])> {
        let (heads, d) = (self.problem.heads, self.problem.head_dim);
        let seen = |item: usize| self.problem.span(self.first_position + item / heads).len();
        let total: usize =
            (0..tokens).map(|t| seen(t * heads).saturating_mul(heads)).fold(0, usize::saturating_add);
        let parts = cpu.pool().parts(total.saturating_mul(2 * d));
        let mut tasks = Vec::with_capacity(parts);
        let (mut rest, mut item, mut done) = (out, 0, 0usize);
        for part in 1..=parts {
            let goal = (total as u128 * part as u128 / parts as u128) as usize;
            let first = item;
            while item < tokens * heads && (done < goal || part == parts) {
                done = done.saturating_add(seen(item));
                item += 1;
            }
            if item > first {
                let (mine, tail) = rest.split_at_mut((item - first) * d);
                tasks.push((first, mine));
                rest = tail;
            }
        }
        tasks
    }

    fn run<K: Kernels, A: Element, B: Element>(
        &self,
        kernels: K,
        k: &[A],
        v: &[B],
        first: usize,
        out: &mut [f32],
    ) {
        let Attention { heads, kv_heads, head_dim: d, scale, .. } = *self.problem;
        let mut scores = Vec::new();
        for (i, out) in out.chunks_exact_mut(d).enumerate() {
            let (token, head) = ((first + i) / heads, (first + i) % heads);
            let span = self.problem.span(self.first_position + token);
            let ring = head / (heads / kv_heads) * self.capacity * d..;
            let (k, v) = (&k[ring.clone()], &v[ring]);
            scores.clear();
            scores.resize(span.len(), 0.0);
            // The span is one run of slots, or two where it wraps around the ring.
            let start = span.start % self.capacity;
            let before_wrap = span.len().min(self.capacity - start);
            let (head_scores, tail_scores) = scores.split_at_mut(before_wrap);
            let q = &self.q[(first + i) * d..][..d];
            kernels.dense_rows(&k[start * d..(start + before_wrap) * d], q, head_scores);
            kernels.dense_rows(&k[..tail_scores.len() * d], q, tail_scores);
            let total = kernels.run(Softmax { scores: &mut scores, scale });
            out.fill(0.0);
            let (head_scores, tail_scores) = scores.split_at(before_wrap);
            kernels.accumulate_rows(head_scores, &v[start * d..(start + before_wrap) * d], out);
            kernels.accumulate_rows(tail_scores, &v[..tail_scores.len() * d], out);
            out.iter_mut().for_each(|v| *v /= total);
        }
    }
}

/// Turns scores into exponentials of their distance to the largest, and returns the sum.
struct Softmax<'a> {
    scores: &'a mut [f32],
    scale: f32,
}

impl Loop for Softmax<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self) -> f32 {
        let mut largest = [f32::NEG_INFINITY; 16];
        for scores in self.scores.chunks_mut(16) {
            for (score, largest) in scores.iter_mut().zip(&mut largest) {
                *score *= self.scale;
                *largest = if *score > *largest { *score } else { *largest };
            }
        }
        let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let mut sums = [0.0; 16];
        for scores in self.scores.chunks_mut(16) {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                *score = exp(*score - largest);
                *sum += *score;
            }
        }
        fold(sums)
    }
}

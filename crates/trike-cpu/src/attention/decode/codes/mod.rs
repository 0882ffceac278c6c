//! Decode attention over codes, in 16-bit integers as in prefill: twice the products per instruction of f32, no conversion of
//! codes, and nibbles are read as stored.
//!
//! A query is rounded once per step, to a norm that bounds its product with any key by `2^31`, as in prefill ([`query_factor`]),
//! but to integers of up to 22 bits: `64 high + low`, with 16 bits for `high` and -32 to 31 for `low`. With heads of 128 the norm
//! is at most 1.48 million, so the error of an element is at most a 2,960,000th of the norm. A score is this exact sum, times the
//! step of the query, times the scale of the key: 16 bits would change the largest weights by `2^-13` for keys ten times as long as
//! usual.
//!
//! The weights of a head, times the scales of the values, are rounded for 64 positions at a time, with the largest scaled to
//! `i16::MAX`: the error of such a product is at most a 65,534th of the largest one of its block. The exact integer sums are then
//! added in f32, so results are the same on every instruction set.
//!
//! Nibbles are multiplied as integers from 0 to 15. A code is `2 nibble - 15`: 15 times the sum of the query, or of the weights, is
//! subtracted once.

mod scores;
mod sums;

use super::{CHUNK, Products, Reading};
use crate::attention::Job;
use crate::attention::cached::Cached;
use crate::attention::lanes::CodeLanes;
use crate::attention::prefill::{query_factor, round_query};
use crate::kernels::{Kernels as _, with_kernels};
use crate::line::{CodeLine, FloatLine, IntLine};
use trike_host::{CacheLine, Isa};

use scores::ScoreCodes;
use sums::{AddCodes, Weights};

/// Codes in bytes.
trait Codes: Cached {
    /// Vectors of 16-bit integers per vector of bytes.
    const PARTS: usize;
    /// A code is `FACTOR * integer - OFFSET`.
    const FACTOR: i32;
    /// See [`FACTOR`](Self::FACTOR).
    const OFFSET: i32;

    /// Offset that makes a code an unsigned byte, if bytes are whole codes.
    const BIAS: i32;

    /// Integers as pairs of i16: bytes 0 and 2 of each four, low nibbles before high ones, then bytes 1 and 3.
    fn widen<S: CodeLanes>(s: S, bytes: S::Bytes, part: usize) -> S::Ints;

    /// 64 times these integers.
    fn widen_64<S: CodeLanes>(s: S, bytes: S::Bytes, part: usize) -> S::Ints;

    /// Integers as unsigned bytes: with the bias, or the low nibbles for part 0 and the high ones for part 1.
    fn unsigned<S: CodeLanes>(s: S, bytes: S::Bytes, part: usize) -> S::Bytes;
}

impl Codes for i8 {
    const PARTS: usize = 2;
    const FACTOR: i32 = 1;
    const OFFSET: i32 = 0;
    const BIAS: i32 = 128;

    #[inline(always)]
    fn widen<S: CodeLanes>(s: S, bytes: S::Bytes, part: usize) -> S::Ints {
        s.widen_bytes(bytes, part)
    }

    #[inline(always)]
    fn widen_64<S: CodeLanes>(s: S, bytes: S::Bytes, part: usize) -> S::Ints {
        s.widen_bytes_64(bytes, part)
    }

    #[inline(always)]
    fn unsigned<S: CodeLanes>(s: S, bytes: S::Bytes, _: usize) -> S::Bytes {
        s.sub_bytes(bytes, s.splat_byte(128))
    }
}

/// Two codes of four bits, [`code`](crate::attention::int4::code).
impl Codes for u8 {
    const PARTS: usize = 4;
    const FACTOR: i32 = 2;
    const OFFSET: i32 = 15;
    const BIAS: i32 = 0;

    #[inline(always)]
    fn widen<S: CodeLanes>(s: S, bytes: S::Bytes, part: usize) -> S::Ints {
        s.widen_nibbles(bytes, part)
    }

    #[inline(always)]
    fn widen_64<S: CodeLanes>(s: S, bytes: S::Bytes, part: usize) -> S::Ints {
        s.widen_nibbles_64(bytes, part)
    }

    #[inline(always)]
    fn unsigned<S: CodeLanes>(s: S, bytes: S::Bytes, part: usize) -> S::Bytes {
        if part == 0 { s.and_bytes(bytes, s.splat_byte(15)) } else { s.high_halves(bytes) }
    }
}

/// The queries of a step as integers, `64 high + low`.
pub(in crate::attention) struct Queries {
    /// `[queries][width.div_ceil(16)][PARTS]`: the high parts, as operands for the parts of sixteen bytes of a key, repeated for
    /// each of four keys; zero-padded.
    high: Vec<IntLine>,
    /// `[queries][width.div_ceil(16)][PARTS / 2]`: the low parts, as signed bytes.
    low: Vec<CodeLine>,
    /// The value of one.
    steps: Vec<f32>,
    /// Added to each product with integers to get the product with codes.
    corrections: Vec<i32>,
    /// Bytes of a key.
    width: usize,
}

/// Factor of the high parts.
const HIGH: i32 = 64;

impl Queries {
    fn new<E: Codes>(q: &[f32], head_dim: usize) -> Self {
        let width = E::width(head_dim);
        let mut all =
            Self { high: Vec::new(), low: Vec::new(), steps: Vec::new(), corrections: Vec::new(), width };
        let halves = E::PARTS / 2;
        for q in q.chunks_exact(head_dim) {
            let (factor, step) = query_factor(q, HIGH as f32);
            let integers: Vec<i32> = q.iter().map(|x| round_query(*x, factor)).collect();
            let high = |i: i32| (i + HIGH / 2).div_euclid(HIGH);
            let low = |i: i32| i - HIGH * high(i);
            // The element that a nibble is multiplied by.
            let at = |half: usize, byte: usize| {
                if byte < width { integers.get(half * width + byte).copied().unwrap_or(0) } else { 0 }
            };
            for byte in (0..width).step_by(16) {
                for part in 0..E::PARTS {
                    let (half, byte) = (part % halves, byte + part / halves);
                    all.high.push(CacheLine(std::array::from_fn(|i| {
                        let byte = byte + 4 * (i % 4);
                        high(at(half, byte)) & 0xFFFF | high(at(half, byte + 2)) << 16
                    })));
                }
                for half in 0..halves {
                    let small = |i: usize| low(at(half, byte + i % 16)) as i8;
                    all.low.push(CacheLine(std::array::from_fn(|i| small(i).cast_unsigned())));
                }
            }
            all.steps.push(step);
            let (total, lows) = (integers.iter().sum::<i32>(), integers.iter().map(|i| low(*i)).sum::<i32>());
            all.corrections.push(-E::OFFSET * total - E::BIAS * lows);
        }
        all
    }

    /// The operands of a query for each sixteen bytes of a key.
    #[inline(always)]
    fn of<const PARTS: usize, const HALVES: usize>(&self, query: usize) -> Query<'_, PARTS, HALVES> {
        let chunks = self.width.div_ceil(16);
        let high = &self.high.as_chunks().0[query * chunks..][..chunks];
        Query { high, low: &self.low.as_chunks().0[query * chunks..][..chunks] }
    }
}

/// The operands of a query for each sixteen bytes of a key.
#[derive(Clone, Copy)]
struct Query<'a, const PARTS: usize, const HALVES: usize> {
    high: &'a [[IntLine; PARTS]],
    low: &'a [[CodeLine; HALVES]],
}

/// The columns of a head in the lines of [`AddCodes`], in order: the start and the length of each run of up to sixteen.
fn columns<E: Codes>(head_dim: usize) -> impl Iterator<Item = (usize, usize)> {
    let width = E::width(head_dim);
    (0..width).step_by(16).flat_map(move |byte| {
        (0..E::PARTS / 2).map(move |half| {
            let (first, end) = (half * width + byte, ((half + 1) * width).min(head_dim));
            (first, (end - first).min(16))
        })
    })
}

/// Sums and weights of a thread.
#[derive(Default)]
pub(in crate::attention) struct Room {
    sums: Vec<FloatLine>,
    weights: Vec<Weights>,
}

macro_rules! products {
    ($($element:ty),*) => {
        $(impl Products for $element {
            type Queries<'a> = Queries;
            type Room = Room;

            fn queries<'a>(job: &Job<'a>) -> Queries {
                Queries::new::<Self>(job.q, job.problem.head_dim)
            }

            fn score(isa: Isa, q: &Queries, query: usize, keys: Reading<'_, Self>, scores: &mut [f32]) {
                let mut first = 0;
                for (rows, scales, next) in keys.runs() {
                    let scores = &mut *scores;
                    with_kernels!(isa, s => {
                        s.run(ScoreCodes { s, queries: q, query, rows, scales, next, scores, first });
                    });
                    first += scales.len();
                }
            }

            fn add(isa: Isa, weights: &[f32], values: Reading<'_, Self>, sums: &mut [f32], room: &mut Room) {
                let (share, d) = (weights.len() / CHUNK, values.head_dim);
                let lines = Self::width(d).div_ceil(16) * Self::PARTS / 2;
                room.sums.clear();
                room.sums.resize(share * lines, CacheLine([0.0; 16]));
                room.weights.resize(share, Weights::NONE);
                let mut first = 0;
                for (rows, scales, next) in values.runs() {
                    let Room { sums, weights: room } = &mut *room;
                    let width = Self::width(d);
                    with_kernels!(isa, s => {
                        s.run(AddCodes { s, weights, first, rows, scales, width, next, sums, room });
                    });
                    first += scales.len();
                }
                for (sums, lines) in sums.chunks_exact_mut(d).zip(room.sums.chunks_exact(lines)) {
                    for ((first, len), line) in columns::<Self>(d).zip(lines) {
                        sums[first..first + len].copy_from_slice(&line.0[..len]);
                    }
                }
            }
        })*
    };
}

products!(i8, u8);

/// Sixteen bytes whose first `len` are those of `from`; the rest is following bytes of `from`, or zeros.
#[inline(always)]
fn beginning(from: &[u8], len: usize) -> [u8; 16] {
    match from.first_chunk() {
        Some(chunk) => *chunk,
        None => {
            let mut bytes = [0; 16];
            bytes[..len].copy_from_slice(&from[..len]);
            bytes
        }
    }
}

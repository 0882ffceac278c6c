//! Element-wise operations on vectors of trits.

use crate::error::{PopcountError, check_len};
use crate::lanes::{Lanes, with_lanes};
use crate::planes::{TritPlanes, TritPlanesMut};
use trike_host::{Isa, Loop};

/// An element-wise operation on two vectors of trits, at least 64 at a time.
pub(crate) trait Operation: Copy {
    /// The planes of the result.
    fn apply<K: Lanes>(self, lanes: K, a: [K::Bits; 2], b: [K::Bits; 2]) -> [K::Bits; 2];
}

/// `a + b` modulo 3, in seven operations; four with an instruction for arbitrary functions of three bits.
#[derive(Clone, Copy)]
pub(crate) struct SumMod3;

/// `a * b`.
#[derive(Clone, Copy)]
pub(crate) struct Product;

/// `a`, or `b` where `a` is zero.
#[derive(Clone, Copy)]
pub(crate) struct Overlay;

impl Operation for Overlay {
    #[inline(always)]
    fn apply<K: Lanes>(self, lanes: K, [ap, an]: [K::Bits; 2], [bp, bn]: [K::Bits; 2]) -> [K::Bits; 2] {
        let there = lanes.or(ap, an);
        [lanes.or(ap, lanes.and_not(bp, there)), lanes.or(an, lanes.and_not(bn, there))]
    }
}

impl Operation for SumMod3 {
    #[inline(always)]
    fn apply<K: Lanes>(self, lanes: K, [ap, an]: [K::Bits; 2], [bp, bn]: [K::Bits; 2]) -> [K::Bits; 2] {
        // Equal trits sum to the opposite sign; different ones to a sign that is not the opposite of either.
        let differ = lanes.xor(lanes.or(ap, bn), lanes.or(an, bp));
        [lanes.xor(lanes.or(an, bn), differ), lanes.xor(lanes.or(ap, bp), differ)]
    }
}

impl Operation for Product {
    #[inline(always)]
    fn apply<K: Lanes>(self, lanes: K, [ap, an]: [K::Bits; 2], [bp, bn]: [K::Bits; 2]) -> [K::Bits; 2] {
        let pos = lanes.or(lanes.and(ap, bp), lanes.and(an, bn));
        let neg = lanes.or(lanes.and(ap, bn), lanes.and(an, bp));
        [pos, neg]
    }
}

/// An operation over whole vectors of equal length.
struct Elements<'a, K, O> {
    lanes: K,
    operation: O,
    a: [&'a [u64]; 2],
    b: [&'a [u64]; 2],
    out: [&'a mut [u64]; 2],
}

impl<K: Lanes, O: Operation> Loop for Elements<'_, K, O> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lanes, operation, a: [ap, an], b: [bp, bn], out: [op, on] } = self;
        let [ap, an, bp, bn] = [ap, an, bp, bn].map(|words| words.chunks_exact(K::WORDS));
        let rest = [ap.remainder(), an.remainder(), bp.remainder(), bn.remainder()];
        let [mut op, mut on] = [op, on].map(|words| words.chunks_exact_mut(K::WORDS));
        for (((((ap, an), bp), bn), op), on) in ap.zip(an).zip(bp).zip(bn).zip(&mut op).zip(&mut on) {
            step(lanes, operation, [ap, an], [bp, bn], [op, on]);
        }
        let [ap, an, bp, bn] = rest;
        if !ap.is_empty() {
            step(lanes, operation, [ap, an], [bp, bn], [op.into_remainder(), on.into_remainder()]);
        }
    }
}

/// The operation on some words.
#[inline(always)]
fn step<K: Lanes, O: Operation>(
    lanes: K,
    operation: O,
    [ap, an]: [&[u64]; 2],
    [bp, bn]: [&[u64]; 2],
    [op, on]: [&mut [u64]; 2],
) {
    let (a, b) = ([lanes.load(ap), lanes.load(an)], [lanes.load(bp), lanes.load(bn)]);
    let [pos, neg] = operation.apply(lanes, a, b);
    lanes.store(pos, op);
    lanes.store(neg, on);
}

/// The operation on vectors of equal length, which is checked here. `run` takes slices for the same reason as `score_pair`.
#[inline]
pub(crate) fn elements(
    isa: Isa,
    operation: impl Operation,
    a: TritPlanes<'_>,
    b: TritPlanes<'_>,
    out: TritPlanesMut<'_>,
) -> Result<(), PopcountError> {
    check_len("the second vector of trits", a.len(), b.len())?;
    check_len("the output vector of trits", a.len(), out.len)?;
    run(isa, operation, a.pos(), a.neg(), b.pos(), b.neg(), out.pos, out.neg);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "six planes, in registers")]
fn run(
    isa: Isa,
    operation: impl Operation,
    ap: &[u64],
    an: &[u64],
    bp: &[u64],
    bn: &[u64],
    op: &mut [u64],
    on: &mut [u64],
) {
    let (a, b, out) = ([ap, an], [bp, bn], [op, on]);
    with_lanes!(isa, lanes => lanes.run(Elements { lanes, operation, a, b, out }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Portable;

    fn planes(trit: i8) -> [u64; 2] {
        [u64::from(trit == 1), u64::from(trit == -1)]
    }

    /// The number that is congruent modulo 3 and closest to zero.
    fn mod3(n: i8) -> i8 {
        (n + 4).rem_euclid(3) - 1
    }

    #[test]
    fn the_boolean_forms_are_the_operations_on_all_nine_pairs() {
        for a in -1..=1 {
            for b in -1..=1 {
                let (pa, pb) = (planes(a), planes(b));
                assert_eq!(SumMod3.apply(Portable, pa, pb), planes(mod3(a + b)), "{a} + {b}");
                let [p, n] = pb;
                assert_eq!(SumMod3.apply(Portable, pa, [n, p]), planes(mod3(a - b)), "{a} - {b}");
                assert_eq!(Product.apply(Portable, pa, pb), planes(a * b), "{a} * {b}");
                assert_eq!(Overlay.apply(Portable, pa, pb), planes(if a == 0 { b } else { a }), "{a} {b}");
            }
        }
    }

    #[test]
    fn sums_are_associative_and_undone_on_all_27_triples() {
        for (a, b, c) in (0..27).map(|i| (i % 3 - 1, i / 3 % 3 - 1, i / 9 - 1)) {
            let [pa, pb, pc] = [a, b, c].map(planes);
            let sum = |x, y| SumMod3.apply(Portable, x, y);
            assert_eq!(sum(sum(pa, pb), pc), sum(pa, sum(pb, pc)), "{a} {b} {c}");
            assert_eq!(sum(sum(pa, pb), planes(-b)), pa, "{a} {b}");
        }
    }
}

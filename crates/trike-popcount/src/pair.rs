//! Scores of two vectors of trits.

use crate::lanes::{Lanes, with_lanes};
use crate::planes::TritPlanes;
use trike_core::TritScore;
use trike_host::{Isa, Loop};

/// A [`TritScore`] in the operations of an instruction set.
pub(crate) trait Score: Copy + Send + Sync {
    /// Initial score of two vectors of this length.
    fn start(self, len: usize) -> i32;
    /// The two planes of one side in the form that [`Score::add`] takes.
    fn side<K: Lanes>(self, lanes: K, pos: K::Bits, neg: K::Bits) -> [K::Bits; 2];
    /// Adds the contribution of two sides to the counts.
    fn add<K: Lanes>(self, lanes: K, tally: [K::Tally; 2], a: [K::Bits; 2], b: [K::Bits; 2])
    -> [K::Tally; 2];
    /// Contribution of the counts to the score; at most the number of positions, so it fits.
    fn total<K: Lanes>(self, lanes: K, tally: [K::Tally; 2]) -> i32;
}

#[derive(Clone, Copy)]
pub(crate) struct Dot;
#[derive(Clone, Copy)]
pub(crate) struct Matches;
#[derive(Clone, Copy)]
pub(crate) struct Agreements;

/// `both - 2 opposed`: with one plane of nonzeros per side, this takes one operation less than counting agreements
/// and oppositions.
impl Score for Dot {
    fn start(self, _: usize) -> i32 {
        0
    }

    #[inline(always)]
    fn side<K: Lanes>(self, lanes: K, pos: K::Bits, neg: K::Bits) -> [K::Bits; 2] {
        [lanes.or(pos, neg), neg]
    }

    #[inline(always)]
    fn add<K: Lanes>(
        self,
        lanes: K,
        tally: [K::Tally; 2],
        a: [K::Bits; 2],
        b: [K::Bits; 2],
    ) -> [K::Tally; 2] {
        let both = lanes.and(a[0], b[0]);
        let opposed = lanes.and(both, lanes.xor(a[1], b[1]));
        [lanes.tally(tally[0], both), lanes.tally(tally[1], opposed)]
    }

    #[inline(always)]
    fn total<K: Lanes>(self, lanes: K, [both, opposed]: [K::Tally; 2]) -> i32 {
        lanes.total(lanes.less(lanes.less(both, opposed), opposed)) as i32
    }
}

/// `len - differing`.
impl Score for Matches {
    fn start(self, len: usize) -> i32 {
        len as i32
    }

    #[inline(always)]
    fn side<K: Lanes>(self, _: K, pos: K::Bits, neg: K::Bits) -> [K::Bits; 2] {
        [pos, neg]
    }

    #[inline(always)]
    fn add<K: Lanes>(
        self,
        lanes: K,
        tally: [K::Tally; 2],
        a: [K::Bits; 2],
        b: [K::Bits; 2],
    ) -> [K::Tally; 2] {
        let differ = lanes.or(lanes.xor(a[0], b[0]), lanes.xor(a[1], b[1]));
        [lanes.tally(tally[0], differ), tally[1]]
    }

    #[inline(always)]
    fn total<K: Lanes>(self, lanes: K, [differ, _]: [K::Tally; 2]) -> i32 {
        -(lanes.total(differ) as i32)
    }
}

impl Score for Agreements {
    fn start(self, _: usize) -> i32 {
        0
    }

    #[inline(always)]
    fn side<K: Lanes>(self, _: K, pos: K::Bits, neg: K::Bits) -> [K::Bits; 2] {
        [pos, neg]
    }

    #[inline(always)]
    fn add<K: Lanes>(
        self,
        lanes: K,
        tally: [K::Tally; 2],
        a: [K::Bits; 2],
        b: [K::Bits; 2],
    ) -> [K::Tally; 2] {
        let agree = lanes.or(lanes.and(a[0], b[0]), lanes.and(a[1], b[1]));
        [lanes.tally(tally[0], agree), tally[1]]
    }

    #[inline(always)]
    fn total<K: Lanes>(self, lanes: K, [agree, _]: [K::Tally; 2]) -> i32 {
        lanes.total(agree) as i32
    }
}

/// Runs an expression with the type of a score.
macro_rules! with_score {
    ($score:expr, $name:ident => $body:expr) => {
        match $score {
            trike_core::TritScore::Dot => {
                let $name = $crate::pair::Dot;
                $body
            }
            trike_core::TritScore::Matches => {
                let $name = $crate::pair::Matches;
                $body
            }
            trike_core::TritScore::Agreements => {
                let $name = $crate::pair::Agreements;
                $body
            }
        }
    };
}
pub(crate) use with_score;

/// The score of two vectors of equal length.
struct Pair<'a, K, S> {
    lanes: K,
    score: S,
    a: [&'a [u64]; 2],
    b: [&'a [u64]; 2],
    len: usize,
}

impl<K: Lanes, S: Score> Loop for Pair<'_, K, S> {
    type Output = i32;

    #[inline(always)]
    fn run(self) -> i32 {
        let Self { lanes, score, a: [ap, an], b: [bp, bn], len } = self;
        let words = ap.len();
        // The slices already have this length; repeating it removes the bounds checks of the loads.
        let (an, bp, bn) = (&an[..words], &bp[..words], &bn[..words]);
        let mut tally = [lanes.none(); 2];
        let mut at = 0;
        while at + K::WORDS <= words {
            let to = at + K::WORDS;
            tally = step(lanes, score, tally, [&ap[at..to], &an[at..to]], [&bp[at..to], &bn[at..to]]);
            at = to;
        }
        if at < words {
            tally = step(lanes, score, tally, [&ap[at..], &an[at..]], [&bp[at..], &bn[at..]]);
        }
        score.start(len) + score.total(lanes, tally)
    }
}

/// Adds the contribution of some words of two vectors to the counts.
///
/// An always-inlined function instead of a closure, here and in the other loops: a closure may not be inlined, and would then be
/// compiled without the instruction set.
#[inline(always)]
fn step<K: Lanes, S: Score>(
    lanes: K,
    score: S,
    tally: [K::Tally; 2],
    [ap, an]: [&[u64]; 2],
    [bp, bn]: [&[u64]; 2],
) -> [K::Tally; 2] {
    let a = score.side(lanes, lanes.load(ap), lanes.load(an));
    let b = score.side(lanes, lanes.load(bp), lanes.load(bn));
    score.add(lanes, tally, a, b)
}

/// Counts the nonzeros of a vector.
struct Nonzeros<'a, K> {
    lanes: K,
    a: TritPlanes<'a>,
}

impl<K: Lanes> Loop for Nonzeros<'_, K> {
    type Output = i32;

    #[inline(always)]
    fn run(self) -> i32 {
        let lanes = self.lanes;
        let mut tally = lanes.none();
        let (pos, neg) = (self.a.pos().chunks_exact(K::WORDS), self.a.neg().chunks_exact(K::WORDS));
        let (last_pos, last_neg) = (pos.remainder(), neg.remainder());
        for (pos, neg) in pos.zip(neg) {
            tally = lanes.tally(tally, lanes.or(lanes.load(pos), lanes.load(neg)));
        }
        if !last_pos.is_empty() {
            tally = lanes.tally(tally, lanes.or(lanes.load(last_pos), lanes.load(last_neg)));
        }
        lanes.total(tally) as i32
    }
}

/// The score of two vectors of equal length.
///
/// The words are passed as slices instead of views, so that they stay in registers: copying two views costs more than
/// comparing a thousand trits.
pub(crate) fn score_pair(
    isa: Isa,
    score: TritScore,
    ap: &[u64],
    an: &[u64],
    bp: &[u64],
    bn: &[u64],
    len: usize,
) -> i32 {
    let (a, b) = ([ap, an], [bp, bn]);
    with_score!(score, score => with_lanes!(isa, lanes => lanes.run(Pair { lanes, score, a, b, len })))
}

/// The number of nonzeros of a vector.
pub(crate) fn nonzeros(isa: Isa, a: TritPlanes<'_>) -> i32 {
    with_lanes!(isa, lanes => lanes.run(Nonzeros { lanes, a }))
}

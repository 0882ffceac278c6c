//! Top-k selection by a histogram of the scores.

use cubecl::prelude::*;

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Units per cube, a power of two.
    pub(super) units: usize,
    /// Histogram bins, more than the largest score.
    pub(super) counts: usize,
    /// Bits that scores lose.
    pub(super) shift: u32,
}

impl Form {
    /// Bytes of shared memory: the histogram, two numbers per unit, and the threshold.
    pub(super) fn shared_bytes(self) -> usize {
        4 * (self.counts + 2 * self.units + THRESHOLD)
    }
}

/// Numbers of the threshold: the score, and how many positions with it are selected and not selected.
const THRESHOLD: usize = 3;

/// Exclusive prefix sum over the units.
#[cube]
fn sum_before(own: u32, shared: &mut Shared<[u32]>, #[comptime] units: usize) -> u32 {
    let unit = UNIT_POS as usize;
    shared[unit] = own;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(units.ilog2()) {
        let step = comptime!(1usize << level);
        let mut sum = shared[unit];
        if unit >= step {
            sum += shared[unit - step];
        }
        sync_cube();
        shared[unit] = sum;
        sync_cube();
    }
    let all = shared[unit];
    sync_cube();
    all - own
}

/// The score of position `2 i + n` in word `i`.
#[cube]
fn score_of(both: u32, #[comptime] n: u32, #[comptime] form: Form) -> u32 {
    (both >> comptime!(16 * n) & 0xFFFFu32) >> form.shift
}

/// Cube `head` writes the positions of its KV head that are selected for a row, in ascending order: the `first` ones, the `best`
/// scores (ties by the later position), and the `last` ones.
///
/// `scores` has two scores per word, `[head][pairs]`, and 0 for positions that are excluded. At least `best` positions are not
/// excluded.
#[cube(launch_unchecked)]
pub(super) fn select_positions(
    scores: &[u32],
    positions: &[u32],
    chosen: &mut [u32],
    row: u32,
    pairs: u32,
    first: u32,
    best: u32,
    last: u32,
    #[comptime] form: Form,
) {
    let units = form.units;
    let unit = UNIT_POS as usize;
    let counts = Shared::<[Atomic<u32>]>::new_slice(form.counts);
    let mut sums = Shared::<[u32]>::new_slice(form.units);
    let mut ties = Shared::<[u32]>::new_slice(form.units);
    let mut threshold = Shared::<[u32]>::new_slice(THRESHOLD);
    let end = positions[row as usize] + 1;
    let used = (end as usize).div_ceil(2);
    let from = CUBE_POS_X as usize * pairs as usize;

    let mut i = unit;
    while i < form.counts {
        counts[i].store(0u32);
        i += units;
    }
    sync_cube();
    let mut i = unit;
    while i < used {
        let both = scores[from + i];
        #[unroll]
        for n in 0..2u32 {
            let score = score_of(both, n, form);
            if score > 0 {
                counts[score as usize].fetch_add(1u32);
            }
        }
        i += units;
    }
    sync_cube();

    // Each unit has a range of the bins, from the largest score down.
    let per = comptime!(form.counts.div_ceil(form.units));
    let mut own = 0u32;
    #[unroll]
    for j in 0..per {
        let at = unit * per + j;
        if at < form.counts {
            own += counts[form.counts - 1 - at].load();
        }
    }
    let above = sum_before(own, &mut sums, units);
    if above < best && above + own >= best {
        let mut left = best - above;
        let mut found = false;
        #[unroll]
        for j in 0..per {
            let at = unit * per + j;
            if at < form.counts && !found {
                let score = form.counts - 1 - at;
                let count = counts[score].load();
                if count >= left {
                    threshold[0] = score as u32;
                    threshold[1] = left;
                    threshold[2] = count - left;
                    found = true;
                } else {
                    left -= count;
                }
            }
        }
    }
    sync_cube();

    let lowest = threshold[0];
    // Each unit has consecutive words.
    let each = used.div_ceil(units);
    let start = min(unit * each, used);
    let stop = min(start + each, used);
    let mut higher = 0u32;
    let mut equal = 0u32;
    for i in start..stop {
        let both = scores[from + i];
        #[unroll]
        for n in 0..2u32 {
            let score = score_of(both, n, form);
            higher += u32::cast_from(score > lowest);
            equal += u32::cast_from(score == lowest);
        }
    }
    let higher_before = sum_before(higher, &mut sums, units);
    let equal_before = sum_before(equal, &mut ties, units);
    // The first ties are the unselected ones.
    let unselected = threshold[2];
    let to = CUBE_POS_X as usize * (first + best + last) as usize;
    let mut before = equal_before;
    let mut at = to + (first + higher_before + equal_before - min(equal_before, unselected)) as usize;
    if higher + equal > 0 {
        for i in start..stop {
            let both = scores[from + i];
            #[unroll]
            for n in 0..2u32 {
                let score = score_of(both, n, form);
                let is_tie = score == lowest;
                if score > lowest || (is_tie && before >= unselected) {
                    chosen[at] = 2 * i as u32 + n;
                    at += 1;
                }
                if is_tie {
                    before += 1;
                }
            }
        }
    }
    let mut i = UNIT_POS;
    while i < first {
        chosen[to + i as usize] = i;
        i += comptime!(form.units as u32);
    }
    let mut i = UNIT_POS;
    while i < last {
        chosen[to + (first + best + i) as usize] = end - last + i;
        i += comptime!(form.units as u32);
    }
}

//! Top-k attention: sign codes of the keys select positions, exact attention runs over the selected ones.
//!
//! A decode step over a long context is limited by loading keys and values. Codes and lengths are an eighth of the size of int8
//! keys; a query is scored against all of them with population counts ([`score`]), the top scores are found with a histogram
//! ([`select`]), and the keys and values of the selected positions are gathered ([`gather`]), so that the decode kernel attends to
//! them as to a short context. Scores are integers and ties go to the later position, so the selection depends on neither the
//! instruction set nor the number of threads.
//!
//! Related to Quest (Tang et al., 2024), which uses bounds per page, and RaBitQ (Gao and Long, 2024), which uses rotated sign
//! codes.

mod gather;
mod index;
mod project;
mod score;
mod select;

use std::ops::Range;

use trike_core::{AttentionSpec, KeySelector, SelectedKeys};
use trike_host::{Cpu, Lines};

use self::gather::Selection;
use self::score::{QueryPlanes, ScoreCodes};
use self::select::{Collect, CountScores, Threshold, above_and_equal, threshold};
use super::lanes::count_bits;
use super::{KvData, KvView, share_out, validate};
use crate::error::{CpuError, check_len};

pub use index::KeyIndex;

/// Positions per task: their codes and scores fit the L2 cache, and the histograms are small in comparison.
const BLOCK: usize = 16_384;

/// Scratch memory of a selection, reused by the next one.
#[derive(Clone, Debug, Default)]
pub struct KeyScratch {
    /// `[kv_heads][positions]`
    scores: Vec<i16>,
    /// `[kv_heads][blocks][possible scores]`
    counts: Vec<u32>,
    /// `[kv_heads][selected]`, relative to the oldest visible position.
    offsets: Vec<u32>,
    /// Gathered keys and values, elements and scales of each.
    keys: [Lines<u64>; 2],
    values: [Lines<u64>; 2],
}

/// Inputs of a key selection: the selector, the codes of the cached keys, and scratch memory.
#[derive(Debug)]
pub struct KeySelection<'a> {
    /// The selector.
    pub selector: KeySelector,
    /// The codes, with the shape of the cache.
    pub index: &'a mut KeyIndex,
    /// Memory.
    pub scratch: &'a mut KeyScratch,
}

/// [`CpuOps::attention_selected`](crate::CpuOps::attention_selected).
pub(crate) fn attention_selected(
    cpu: &Cpu,
    problem: &AttentionSpec,
    q: &[f32],
    position: usize,
    kv: KvView<'_>,
    selection: KeySelection<'_>,
    out: &mut [f32],
) -> Result<(), CpuError> {
    validate(problem, q, position, &kv, out)?;
    let step = Step::new(problem, q, position, kv.capacity, selection.index)?;
    let Some(selected) = selection.selector.select(step.visible.len()) else {
        return super::attention(cpu, problem, q, position, kv, out);
    };
    let KeySelection { index, scratch, .. } = selection;
    step.select(cpu, kv.k, selected, index, scratch);
    let count = selected.total();
    let rows = Selection {
        offsets: &scratch.offsets,
        count,
        start: step.visible.start % kv.capacity,
        capacity: kv.capacity,
        head_dim: problem.head_dim,
    };
    let k = rows.gather(cpu, kv.k, &mut scratch.keys)?;
    let v = rows.gather(cpu, kv.v, &mut scratch.values)?;
    // The selected positions form a context without a window: keys already contain their rotary embedding.
    let problem = AttentionSpec { window: None, ..*problem };
    super::attention(cpu, &problem, q, count - 1, KvView { k, v, capacity: count }, out)
}

/// [`CpuOps::select_keys`](crate::CpuOps::select_keys).
pub(crate) fn select_keys(
    cpu: &Cpu,
    problem: &AttentionSpec,
    q: &[f32],
    position: usize,
    kv: KvView<'_>,
    selection: KeySelection<'_>,
) -> Result<Option<Vec<Vec<usize>>>, CpuError> {
    validate(problem, q, position, &kv, &vec![0.0; q.len()])?;
    let step = Step::new(problem, q, position, kv.capacity, selection.index)?;
    let Some(selected) = selection.selector.select(step.visible.len()) else { return Ok(None) };
    let KeySelection { index, scratch, .. } = selection;
    step.select(cpu, kv.k, selected, index, scratch);
    let of_heads = scratch.offsets.chunks_exact(selected.total());
    let position = |&offset: &u32| step.visible.start + offset as usize;
    Ok(Some(of_heads.map(|offsets| offsets.iter().map(position).collect()).collect()))
}

/// The query of a decode step with the positions that it may attend to.
struct Step<'a> {
    problem: &'a AttentionSpec,
    q: &'a [f32],
    visible: Range<usize>,
}

/// Consecutive positions of one head, excluding the sinks and the most recent ones.
struct Block<'s> {
    head: usize,
    /// Relative to the oldest visible position.
    offsets: Range<usize>,
    scores: &'s mut [i16],
    counts: &'s mut [u32],
}

impl<'a> Step<'a> {
    /// Expects validated arguments, except the number of queries and the shape of the index.
    fn new(
        problem: &'a AttentionSpec,
        q: &'a [f32],
        position: usize,
        capacity: usize,
        index: &KeyIndex,
    ) -> Result<Self, CpuError> {
        check_len("query of attention to selected keys", problem.heads * problem.head_dim, q.len())?;
        for (what, expected, got) in [
            ("key/value heads", problem.kv_heads, index.kv_heads),
            ("head_dim", problem.head_dim, index.head_dim),
            ("capacity", capacity, index.capacity),
        ] {
            if expected != got {
                return Err(CpuError::KeyIndex { what, expected, got });
            }
        }
        Ok(Self { problem, q, visible: problem.span(position) })
    }

    /// The sum of the queries of the heads that share keys, as bit planes. The transform is linear, so one transform of the sum is
    /// enough.
    fn queries(&self, index: &KeyIndex) -> Vec<QueryPlanes> {
        let d = self.problem.head_dim;
        let share = self.problem.heads / self.problem.kv_heads;
        let of_group = |group: &[f32]| {
            let mut sum = vec![0.0; index.projection.channels()];
            for q in group.chunks_exact(d) {
                sum.iter_mut().zip(q).for_each(|(sum, q)| *sum += q);
            }
            index.projection.apply(&mut sum);
            QueryPlanes::new(&sum)
        };
        self.q.chunks_exact(share * d).map(of_group).collect()
    }

    /// Writes the selected positions of every head to `scratch.offsets`, in order.
    fn select(
        &self,
        cpu: &Cpu,
        keys: KvData<'_>,
        selected: SelectedKeys,
        index: &mut KeyIndex,
        scratch: &mut KeyScratch,
    ) {
        index.update(cpu, keys, self.visible.end);
        let index = &*index;
        let queries = self.queries(index);
        let heads = self.problem.kv_heads;
        let between = selected.first..self.visible.len() - selected.last;
        let spread = score::spread(&index.projection);
        let (n, blocks) = (between.len(), between.len().div_ceil(BLOCK));
        scratch.scores.resize(heads * n, 0);
        scratch.counts.resize(heads * blocks * spread, 0);
        let of_blocks = scratch.scores.chunks_mut(n).flat_map(|scores| scores.chunks_mut(BLOCK));
        let mut all: Vec<Block<'_>> = of_blocks
            .zip(scratch.counts.chunks_exact_mut(spread))
            .enumerate()
            .map(|(i, (scores, counts))| {
                let start = between.start + i % blocks * BLOCK;
                Block { head: i / blocks, offsets: start..start + scores.len(), scores, counts }
            })
            .collect();
        // A position costs about ten multiply-adds per word of its code.
        let parts = cpu.pool().parts((10 * heads * n).saturating_mul(index.projection.words()));
        cpu.pool().run(share_out(all.iter_mut().collect(), |block| block.scores.len(), parts), |blocks| {
            for block in blocks {
                self.score(cpu, index, &queries[block.head], block);
            }
        });
        scratch.offsets.resize(heads * selected.total(), 0);
        let mut tasks = Vec::with_capacity(all.len());
        for (blocks, offsets) in
            all.chunks_exact(blocks).zip(scratch.offsets.chunks_exact_mut(selected.total()))
        {
            let (first, rest) = offsets.split_at_mut(selected.first);
            let (best, last) = rest.split_at_mut(selected.best);
            first.iter_mut().zip(0..).for_each(|(to, offset)| *to = offset);
            last.iter_mut().zip(between.end as u32..).for_each(|(to, offset)| *to = offset);
            tasks.extend(share_best(blocks, best));
        }
        cpu.pool().run(share_out(tasks, |(block, ..)| block.scores.len(), parts), |tasks| {
            for (block, threshold, skipped, to) in tasks {
                let first = block.offsets.start as u32;
                count_bits(cpu.isa(), Collect { scores: block.scores, threshold, skipped, first, to });
            }
        });
    }

    /// Scores one block and counts the scores.
    fn score(&self, cpu: &Cpu, index: &KeyIndex, query: &QueryPlanes, block: &mut Block<'_>) {
        let Range { start, end } = block.offsets;
        let positions = self.visible.start + start..self.visible.start + end;
        let mut rest = &mut *block.scores;
        for (codes, lengths) in index.codes_of(block.head, positions) {
            let (scores, later) = rest.split_at_mut(lengths.len());
            count_bits(cpu.isa(), ScoreCodes { query, codes, lengths, scores });
            rest = later;
        }
        block.counts.fill(0);
        count_bits(cpu.isa(), CountScores { scores: block.scores, counts: block.counts });
    }
}

/// A block with the threshold of its head, the number of its ties that are not selected, and the destination of its positions.
type Share<'b, 's, 'o> = (&'b Block<'s>, Threshold, usize, &'o mut [u32]);

/// Divides the output of one head among its blocks; the last ties are selected.
fn share_best<'b, 's, 'o>(blocks: &'b [Block<'s>], mut to: &'o mut [u32]) -> Vec<Share<'b, 's, 'o>> {
    let counts: Vec<&[u32]> = blocks.iter().map(|block| &*block.counts).collect();
    let threshold = threshold(&counts, to.len());
    let each: Vec<[usize; 2]> = counts.iter().map(|counts| above_and_equal(counts, threshold)).collect();
    let mut unselected = each.iter().map(|[_, ties]| ties).sum::<usize>() - threshold.ties;
    let mut shares = Vec::with_capacity(blocks.len());
    for (block, [above, ties]) in blocks.iter().zip(each) {
        let skipped = unselected.min(ties);
        unselected -= skipped;
        let (own, rest) = to.split_at_mut(above + ties - skipped);
        to = rest;
        shares.push((block, threshold, skipped, own));
    }
    shares
}

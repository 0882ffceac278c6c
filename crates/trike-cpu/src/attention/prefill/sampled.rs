//! Selection of the relevant key blocks of a prompt, from the attention of sampled tokens.
//!
//! Four tokens of each query block attend to all keys: a sixteenth of the scores. The attention to a key block is summed over these
//! tokens and over the heads that share the keys, and the blocks with the most are kept. The rows are computed with the products of
//! [`floats`](super::floats) and [`ints`](super::ints), without the values.

use std::ops::Range;

use trike_core::{AttentionSpec, BlockBitmap, PromptKeys};
use trike_host::Cpu;

use super::shares::{Sample, Shares};
use super::{KEYS, ROWS, floats, ints};
use crate::CpuError;
use crate::attention::{Job, KvData, KvView, Ring, Segment, validate};

/// Sampled tokens per query block.
const SAMPLES: usize = 4;

/// [`CpuOps::choose_blocks`](crate::CpuOps::choose_blocks).
pub(crate) fn choose(
    cpu: &Cpu,
    problem: &AttentionSpec,
    q: &[f32],
    first_position: usize,
    kv: KvView<'_>,
    keys: PromptKeys,
) -> Result<Option<BlockBitmap>, CpuError> {
    // The same checks as in attention, with an output as long as the queries.
    let tokens = validate(problem, q, first_position, &kv, q)?;
    let mut room = Vec::new();
    let q = kv.k.queries(cpu, q, problem.head_dim, &mut room)?;
    let job = Job { problem, q, tokens, first_position, capacity: kv.capacity, mask: None, few: false };
    let positions = first_position..first_position + tokens;
    let query_blocks = positions.start / KEYS..positions.end.div_ceil(KEYS);
    let within = |block: usize| (block * KEYS).max(positions.start)..(block * KEYS + KEYS).min(positions.end);
    // Visible to some token of a query block.
    let visible = |block: usize| problem.span(within(block).start).start / KEYS..block + 1;
    if tokens <= 1 || query_blocks.clone().all(|block| keys.kept(visible(block).len()).is_none()) {
        return Ok(None);
    }
    let samples: Vec<(usize, usize)> = query_blocks
        .clone()
        .flat_map(|block| {
            let Range { start, end } = within(block);
            let mut tokens: Vec<_> =
                (1..=SAMPLES).map(|i| start + ((end - start) * i / SAMPLES).max(1) - 1).collect();
            tokens.dedup();
            tokens.into_iter().map(move |position| (block, position - first_position))
        })
        .collect();
    let share = job.share();
    let rows = |kv_head: usize| {
        let heads = kv_head * share..(kv_head + 1) * share;
        samples.iter().flat_map(move |&(_, token)| heads.clone().map(move |head| (token, head)))
    };
    let (per_head, width) = (samples.len() * share, query_blocks.end);
    let mut shares = vec![0.0f32; problem.kv_heads * per_head * width];
    let mut items = Vec::new();
    for (kv_head, shares) in shares.chunks_exact_mut(per_head * width).enumerate() {
        let rows: Vec<_> = rows(kv_head).collect();
        items.extend(rows.chunks(ROWS).zip(shares.chunks_mut(ROWS * width)).map(|(rows, shares)| Sample {
            kv_head,
            rows: rows.to_vec(),
            shares: Shares::Blocks(shares),
        }));
    }
    score(&job, cpu, kv.k, items);

    let mut mask = BlockBitmap::diagonal(problem.kv_heads, positions.clone())?;
    for (kv_head, shares) in shares.chunks_exact(per_head * width).enumerate() {
        let mut rows = samples.iter().zip(shares.chunks_exact(share * width)).peekable();
        for block in query_blocks.clone() {
            let mut sums = vec![0.0f32; width];
            while let Some((_, shares)) = rows.next_if(|((own, _), _)| *own == block) {
                for shares in shares.chunks_exact(width) {
                    sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
                }
            }
            for key_block in best(&sums, visible(block), keys) {
                mask.insert(kv_head, block, key_block)?;
            }
        }
    }
    Ok(Some(mask))
}

/// The first and the last visible block, and the intermediate ones with the largest sums, ties by the later block. NaN sums come
/// first, so that the result is NaN wherever exact attention gives NaN.
fn best(sums: &[f32], visible: Range<usize>, keys: PromptKeys) -> Vec<usize> {
    let Some(kept) = keys.kept(visible.len()) else { return visible.collect() };
    let mut between: Vec<_> = (visible.start + 1..visible.end - 1).collect();
    let size = |block: usize| if sums[block].is_nan() { f32::INFINITY } else { sums[block] };
    between.sort_by(|&a, &b| size(b).total_cmp(&size(a)).then(b.cmp(&a)));
    between.truncate(kept - 2);
    between.extend([visible.start, visible.end - 1]);
    between
}

/// [`CpuOps::attention_received`](crate::CpuOps::attention_received).
pub(crate) fn received(
    cpu: &Cpu,
    problem: &AttentionSpec,
    q: &[f32],
    first_position: usize,
    kv: KvView<'_>,
) -> Result<Vec<f32>, CpuError> {
    let tokens = validate(problem, q, first_position, &kv, q)?;
    let end = if tokens == 0 { 0 } else { first_position + tokens };
    let mut room = Vec::new();
    let q = kv.k.queries(cpu, q, problem.head_dim, &mut room)?;
    let job = Job { problem, q, tokens, first_position, capacity: kv.capacity, mask: None, few: false };
    let share = job.share();
    let mut items = Vec::new();
    for kv_head in 0..problem.kv_heads {
        let heads = kv_head * share..(kv_head + 1) * share;
        let rows: Vec<_> =
            (0..tokens).flat_map(|token| heads.clone().map(move |head| (token, head))).collect();
        items.extend(rows.chunks(ROWS).map(|rows| {
            let shares = Shares::Positions(vec![0.0; end]);
            Sample { kv_head, rows: rows.to_vec(), shares }
        }));
    }
    let mut received = vec![0.0f32; problem.kv_heads * end];
    for Sample { kv_head, shares, .. } in score(&job, cpu, kv.k, items) {
        let Shares::Positions(shares) = shares else { continue };
        let received = &mut received[kv_head * end..(kv_head + 1) * end];
        received.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
    }
    Ok(received)
}

/// Computes the attention of all samples, which keep their order.
fn score<'o>(job: &Job<'_>, cpu: &Cpu, k: KvData<'_>, items: Vec<Sample<'o>>) -> Vec<Sample<'o>> {
    let (pool, isa) = (cpu.pool(), cpu.isa());
    let pairs = items.iter().map(|item| item.rows.len() * job.span(item.rows[item.rows.len() - 1].0).len());
    let parts = job.parts(pool, pairs.fold(0, usize::saturating_add));
    let shares = crate::attention::share_out(items, |item| item.rows.len(), parts);
    let shares = match k {
        KvData::F32(k) => {
            pool.map(shares, |items| floats::sample(job, isa, Ring(&[Segment::plain(k)]), items))
        }
        KvData::F16(k) => pool.map(shares, |items| ints::sample(job, isa, Ring(&[Segment::plain(k)]), items)),
        KvData::Int8 { codes, scales } => {
            let ring = [Segment { elements: codes, scales }];
            pool.map(shares, |items| ints::sample(job, isa, Ring(&ring), items))
        }
        KvData::Int4 { codes, scales } => {
            let ring = [Segment { elements: codes, scales }];
            pool.map(shares, |items| ints::sample(job, isa, Ring(&ring), items))
        }
    };
    shares.into_iter().flatten().collect()
}

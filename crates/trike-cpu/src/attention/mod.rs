//! Causal attention over a ring buffer of keys and values.
//!
//! Two implementations of the same sums: `decode` for a few query rows, with vectors along the head dimension, so that
//! keys and values are read once for all heads of a group; `prefill` for blocks of rows, with vectors across the rows,
//! so that products stay in registers (after FlashAttention: Dao et al., 2022). Both split the positions at fixed
//! boundaries, so that the result does not depend on the number of threads. Both multiply codes as 16-bit integers, and `prefill`
//! also f16.

#![allow(
    clippy::needless_range_loop,
    reason = "the indices are rows, heads and vectors, and each walks several arrays"
)]

mod buffer;
mod cached;
mod decode;
mod int4;
mod int8;
mod keys;
mod lanes;
mod prefill;

use std::mem::discriminant;
use std::ops::Range;

use half::f16;
use trike_core::{AttentionSpec, BlockBitmap};

use crate::error::{CpuError, check_len, check_range, check_rows};
use crate::kernels::Element as _;
use trike_host::{Cpu, Isa, Pool};

use cached::Cached;

pub use buffer::KvBuffer;
pub use int4::quantize_head_int4;
pub use int8::quantize_head;
pub use keys::{KeyIndex, KeyScratch, KeySelection};
pub(crate) use keys::{attention_selected, select_keys};
pub(crate) use prefill::{attention_received, choose_blocks};

/// Maximum query rows of a group of heads for which memory bandwidth is the bottleneck, not arithmetic.
const FEW_ROWS: usize = 8;

/// Queries from which on [`CpuOps::attention`](crate::CpuOps::attention) treats consecutive tokens as a prompt, whatever the heads: their
/// rows do not depend on the other rows of the call, so that a prompt has the same bits in one call or in several of at least this many.
pub const PROMPT_ROWS: usize = FEW_ROWS + 1;

/// Queries at positions below this are computed in f32 for every cache: over short contexts attention takes little time, so
/// integers would gain little.
const EXACT: usize = 256;

/// Keys or values, `[kv_heads][capacity][head_dim]`.
#[derive(Clone, Copy, Debug)]
pub enum KvData<'a> {
    /// Single precision, as computed.
    F32(&'a [f32]),
    /// Half precision, half the bytes.
    F16(&'a [f16]),
    /// Codes of [`quantize_head`]: a quarter of the bytes, and four for each scale.
    Int8 {
        /// Codes, `[kv_heads][capacity][head_dim]`.
        codes: &'a [i8],
        /// Scales, `[kv_heads][capacity]`.
        scales: &'a [f32],
    },
    /// Codes of [`quantize_head_int4`]: an eighth of the bytes, and four for each scale.
    Int4 {
        /// Two codes in each byte, `[kv_heads][capacity][ceil(head_dim / 2)]`.
        codes: &'a [u8],
        /// Scales, `[kv_heads][capacity]`.
        scales: &'a [f32],
    },
}

impl KvData<'_> {
    /// Checks the lengths for `slots` slots over all heads.
    fn check(&self, what: [&'static str; 2], slots: usize, head_dim: usize) -> Result<(), CpuError> {
        let elements = slots * head_dim;
        match self {
            Self::F32(v) => check_len(what[0], elements, v.len()),
            Self::F16(v) => check_len(what[0], elements, v.len()),
            Self::Int8 { codes, scales } => {
                check_len(what[0], elements, codes.len())?;
                check_len(what[1], slots, scales.len())
            }
            Self::Int4 { codes, scales } => {
                check_len(what[0], slots * int4::bytes(head_dim), codes.len())?;
                check_len(what[1], slots, scales.len())
            }
        }
    }

    /// Whether the elements of a head are Hadamard-transformed ([`int4`]).
    fn is_mixed(&self) -> bool {
        matches!(self, Self::Int4 { .. })
    }

    /// Queries in the basis of the keys: transformed, in `room`, if the keys are.
    fn queries<'q>(
        &self,
        cpu: &Cpu,
        q: &'q [f32],
        head_dim: usize,
        room: &'q mut Vec<f32>,
    ) -> Result<&'q [f32], CpuError> {
        if !self.is_mixed() {
            return Ok(q);
        }
        room.extend_from_slice(q);
        int4::mix(cpu, room, head_dim)?;
        Ok(room)
    }

    /// The stored values in f32: exact, like the widening in the kernels, except for the product with a scale.
    fn widened(&self, head_dim: usize) -> Vec<f32> {
        let scaled = |codes: &[i8], scales: &[f32]| -> Vec<f32> {
            let heads = codes.chunks_exact(head_dim).zip(scales);
            heads.flat_map(|(codes, scale)| codes.iter().map(move |&code| f32::from(code) * scale)).collect()
        };
        match self {
            Self::F32(v) => v.to_vec(),
            Self::F16(v) => v.iter().map(|half| half.to_f32()).collect(),
            Self::Int8 { codes, scales } => scaled(codes, scales),
            Self::Int4 { codes, scales } => scaled(u8::elements(codes, head_dim, &mut Vec::new()), scales),
        }
    }
}

/// A ring buffer of keys and values: position `p` is stored in slot `p % capacity` of each head.
#[derive(Clone, Copy, Debug)]
pub struct KvView<'a> {
    /// Keys.
    pub k: KvData<'a>,
    /// Values.
    pub v: KvData<'a>,
    /// Slots per head.
    pub capacity: usize,
}

/// Positions of a page of [`CpuOps::attention_paged`](crate::CpuOps::attention_paged): a block of positions, at whose boundaries
/// both implementations round, is never split.
pub const KV_PAGE: usize = 64;

/// Checks all arguments and returns the number of query tokens.
fn validate(
    spec: &AttentionSpec,
    q: &[f32],
    first_position: usize,
    kv: &KvView<'_>,
    out: &[f32],
) -> Result<usize, CpuError> {
    let tokens = validate_spec(spec, q, first_position, out)?;
    validate_slots(spec, kv)?;
    if tokens > 0 {
        let needed = first_position + tokens - spec.span(first_position).start;
        if needed > kv.capacity {
            return Err(CpuError::KvCapacity { needed, capacity: kv.capacity });
        }
    }
    Ok(tokens)
}

/// [`validate`] for the pages of a sequence.
fn validate_pages(
    spec: &AttentionSpec,
    q: &[f32],
    first_position: usize,
    pages: &[KvView<'_>],
    out: &[f32],
) -> Result<usize, CpuError> {
    let tokens = validate_spec(spec, q, first_position, out)?;
    for page in pages {
        check_len("positions of a page of attention", KV_PAGE, page.capacity)?;
        validate_slots(spec, page)?;
    }
    let is_first = |data: &KvData<'_>, first: &KvData<'_>| discriminant(data) == discriminant(first);
    let like_first = |page: &&KvView<'_>| is_first(&page.k, &pages[0].k) && is_first(&page.v, &pages[0].v);
    let same = pages.iter().take_while(like_first).count();
    check_len("pages of one precision of attention", pages.len(), same)?;
    let (needed, capacity) = (first_position + tokens, pages.len() * KV_PAGE);
    if tokens > 0 && needed > capacity {
        return Err(CpuError::KvCapacity { needed, capacity });
    }
    Ok(tokens)
}

/// Checks the slots of a ring or page.
fn validate_slots(spec: &AttentionSpec, kv: &KvView<'_>) -> Result<(), CpuError> {
    let overflow = CpuError::Shape { what: "ring of attention", rows: kv.capacity, cols: spec.head_dim };
    let len = (spec.kv_heads * spec.head_dim).checked_mul(kv.capacity).ok_or(overflow)?;
    let slots = len / spec.head_dim;
    kv.k.check(["keys of attention", "scales of keys of attention"], slots, spec.head_dim)?;
    kv.v.check(["values of attention", "scales of values of attention"], slots, spec.head_dim)
}

/// Checks everything but the keys and values, and returns the number of query tokens.
fn validate_spec(
    spec: &AttentionSpec,
    q: &[f32],
    first_position: usize,
    out: &[f32],
) -> Result<usize, CpuError> {
    check_range("heads of attention", 1, 1 << 20, spec.heads)?;
    check_range("key/value heads of attention", 1, spec.heads, spec.kv_heads)?;
    check_range("head_dim of attention", 1, 1 << 20, spec.head_dim)?;
    check_range("window of attention", 1, usize::MAX, spec.window.unwrap_or(1))?;
    if !spec.heads.is_multiple_of(spec.kv_heads) {
        return Err(CpuError::Heads { heads: spec.heads, kv_heads: spec.kv_heads });
    }
    let tokens = check_rows("queries of attention", spec.heads * spec.head_dim, q.len())?;
    check_len("output of attention", q.len(), out.len())?;
    // The position after the last query must not overflow either.
    check_range("first position of attention", 0, usize::MAX / 2, first_position)?;
    Ok(tokens)
}

/// [`CpuOps::attention`](crate::CpuOps::attention).
pub(crate) fn attention(
    cpu: &Cpu,
    problem: &AttentionSpec,
    q: &[f32],
    first_position: usize,
    kv: KvView<'_>,
    out: &mut [f32],
) -> Result<(), CpuError> {
    let tokens = validate(problem, q, first_position, &kv, out)?;
    attend(cpu, problem, (q, tokens), first_position, &[kv], None, out)
}

/// [`CpuOps::attention_paged`](crate::CpuOps::attention_paged).
pub(crate) fn attention_paged(
    cpu: &Cpu,
    problem: &AttentionSpec,
    q: &[f32],
    first_position: usize,
    pages: &[KvView<'_>],
    out: &mut [f32],
) -> Result<(), CpuError> {
    let tokens = validate_pages(problem, q, first_position, pages, out)?;
    attend(cpu, problem, (q, tokens), first_position, pages, None, out)
}

/// [`CpuOps::attention_masked`](crate::CpuOps::attention_masked).
pub(crate) fn attention_masked(
    cpu: &Cpu,
    problem: &AttentionSpec,
    q: &[f32],
    first_position: usize,
    kv: KvView<'_>,
    mask: &BlockBitmap,
    out: &mut [f32],
) -> Result<(), CpuError> {
    let tokens = validate(problem, q, first_position, &kv, out)?;
    attend(cpu, problem, (q, tokens), first_position, &[kv], Some(mask), out)
}

/// Attention over validated keys and values: a ring, or pages.
fn attend(
    cpu: &Cpu,
    problem: &AttentionSpec,
    (q, tokens): (&[f32], usize),
    first_position: usize,
    kv: &[KvView<'_>],
    mask: Option<&BlockBitmap>,
    out: &mut [f32],
) -> Result<(), CpuError> {
    let Some(first) = kv.first().filter(|_| tokens > 0) else { return Ok(()) };
    if let Some(mask) = mask {
        mask.check(problem.kv_heads, &(first_position..first_position + tokens))?;
    }
    let (isa, pool, d) = (cpu.isa(), cpu.pool(), problem.head_dim);
    let mut room = Vec::new();
    let q = first.k.queries(cpu, q, d, &mut room)?;
    let few = mask.is_none() && few(problem, tokens);
    let job = Job { problem, q, tokens, first_position, capacity: first.capacity, mask, few };
    match (first.k, first.v) {
        (KvData::F32(_), KvData::F32(_)) => {
            let (k, v) = segments(kv, (f32s, f32s));
            job.floats(isa, pool, Ring(&k), Ring(&v), out);
        }
        (KvData::F16(_), KvData::F16(_)) => {
            let (k, v) = segments(kv, (f16s, f16s));
            job.ints(isa, pool, Ring(&k), Ring(&v), out);
        }
        (KvData::Int8 { .. }, KvData::Int8 { .. }) => {
            let (k, v) = segments(kv, (int8s, int8s));
            job.ints(isa, pool, Ring(&k), Ring(&v), out);
        }
        (KvData::Int4 { .. }, KvData::Int4 { .. }) => {
            let (k, v) = segments(kv, (int4s, int4s));
            job.ints(isa, pool, Ring(&k), Ring(&v), out);
        }
        (KvData::Int8 { .. }, KvData::Int4 { .. }) => {
            let (k, v) = segments(kv, (int8s, int4s));
            job.ints(isa, pool, Ring(&k), Ring(&v), out);
        }
        // The kernels are compiled for the type pairs of actual caches; other pairs are widened here.
        _ => {
            let wide: Vec<_> = kv.iter().map(|kv| (kv.k.widened(d), kv.v.widened(d))).collect();
            let k: Vec<_> = wide.iter().map(|(k, _)| Segment::plain(k)).collect();
            let v: Vec<_> = wide.iter().map(|(_, v)| Segment::plain(v)).collect();
            job.floats(isa, pool, Ring(&k), Ring(&v), out);
        }
    }
    if first.v.is_mixed() { int4::mix(cpu, out, d) } else { Ok(()) }
}

/// The segments of the keys and of the values, all of which have these types.
fn segments<'a, K, V>(
    kv: &[KvView<'a>],
    of: (impl Fn(KvData<'a>) -> Option<Segment<'a, K>>, impl Fn(KvData<'a>) -> Option<Segment<'a, V>>),
) -> (Vec<Segment<'a, K>>, Vec<Segment<'a, V>>) {
    kv.iter().filter_map(|kv| Some((of.0(kv.k)?, of.1(kv.v)?))).unzip()
}

fn f32s(data: KvData<'_>) -> Option<Segment<'_, f32>> {
    if let KvData::F32(elements) = data { Some(Segment::plain(elements)) } else { None }
}

fn f16s(data: KvData<'_>) -> Option<Segment<'_, f16>> {
    if let KvData::F16(elements) = data { Some(Segment::plain(elements)) } else { None }
}

fn int8s(data: KvData<'_>) -> Option<Segment<'_, i8>> {
    if let KvData::Int8 { codes, scales } = data { Some(Segment { elements: codes, scales }) } else { None }
}

fn int4s(data: KvData<'_>) -> Option<Segment<'_, u8>> {
    if let KvData::Int4 { codes, scales } = data { Some(Segment { elements: codes, scales }) } else { None }
}

/// Whether memory bandwidth is the bottleneck of this many query tokens, not arithmetic.
fn few(problem: &AttentionSpec, tokens: usize) -> bool {
    tokens == 1 || tokens * (problem.heads / problem.kv_heads) <= FEW_ROWS
}

/// Keys or values of one type. Position `p` is in slot `p % capacity` of segment `p / capacity`, modulo the number of segments: one
/// segment is a ring, several are the pages of a sequence.
#[derive(Clone, Copy)]
struct Ring<'a, E>(&'a [Segment<'a, E>]);

/// The slots of a ring or of a page.
#[derive(Clone, Copy)]
struct Segment<'a, E> {
    /// `[kv_heads][capacity]`, each of [`Cached::width`].
    elements: &'a [E],
    /// `[kv_heads][capacity]` if the elements are codes, else empty.
    scales: &'a [f32],
}

impl<'a, E> Segment<'a, E> {
    fn plain(elements: &'a [E]) -> Self {
        Self { elements, scales: &[] }
    }
}

/// Most runs of consecutive slots at the positions of a chunk of decode attention: pages that it starts in the middle of.
const RUNS: usize = decode::CHUNK / KV_PAGE + 1;

/// Rows at some positions, run by run; runs after the last are empty.
type Runs<'a, T> = [&'a [T]; RUNS];

/// A validated problem with its queries.
struct Job<'a> {
    problem: &'a AttentionSpec,
    q: &'a [f32],
    tokens: usize,
    first_position: usize,
    capacity: usize,
    /// The key blocks that query blocks attend to; `None` = all visible ones.
    mask: Option<&'a BlockBitmap>,
    /// Whether the decode kernels compute it, however its tokens are split: a row of a prompt does not depend on the other rows.
    few: bool,
}

impl Job<'_> {
    /// Attention over a cache in f32.
    fn floats(&self, isa: Isa, pool: &Pool, k: Ring<'_, f32>, v: Ring<'_, f32>, out: &mut [f32]) {
        // Only the prefill kernels skip blocks.
        if self.few {
            decode::run(self, isa, pool, k, v, out);
        } else {
            prefill::floats(self, isa, pool, k, v, out);
        }
    }

    /// Attention over a cache of at most two bytes per element.
    fn ints<K, V>(&self, isa: Isa, pool: &Pool, k: Ring<'_, K>, v: Ring<'_, V>, out: &mut [f32])
    where
        K: decode::Products<Element: prefill::Stored>,
        V: decode::Products<Element: prefill::Stored>,
    {
        let end = self.first_position + self.tokens;
        if self.few && (end > EXACT || !K::Element::CODES) {
            decode::run(self, isa, pool, k, v, out);
        } else if self.first_position >= EXACT {
            prefill::ints(self, isa, pool, k, v, out);
        } else if end <= EXACT {
            let (k, v) = (self.widened(k), self.widened(v));
            let (k, v) = ([Segment::plain(&k[..])], [Segment::plain(&v[..])]);
            Job { capacity: end, ..*self }.floats(isa, pool, Ring(&k), Ring(&v), out);
        } else {
            let tokens = EXACT - self.first_position;
            let at = tokens * self.problem.heads * self.problem.head_dim;
            let ((q, later_q), (out, later_out)) = (self.q.split_at(at), out.split_at_mut(at));
            Job { q, tokens, ..*self }.ints(isa, pool, k, v, out);
            let later = Job { q: later_q, tokens: self.tokens - tokens, first_position: EXACT, ..*self };
            later.ints(isa, pool, k, v, later_out);
        }
    }

    /// The visible keys or values of the first positions in f32, `[kv_heads][positions][head_dim]`; invisible ones are zero.
    fn widened<E: Cached>(&self, ring: Ring<'_, E>) -> Vec<f32> {
        let (d, end) = (self.problem.head_dim, self.first_position + self.tokens);
        let positions = self.span(0).start..end;
        let mut wide = vec![0.0; self.problem.kv_heads * end * d];
        for (head, wide) in wide.chunks_exact_mut(end * d).enumerate() {
            let runs = self.runs(ring, head, &positions);
            let mut room: [Vec<i8>; RUNS] = Default::default();
            let runs = runs.into_iter().zip(&mut room).map(|(run, room)| E::elements(run, d, room));
            let rows = runs.flat_map(|run| run.chunks_exact(d));
            let mut scales = self.scales(ring, head, &positions).into_iter().flatten();
            for (row, to) in rows.zip(wide[positions.start * d..].chunks_exact_mut(d)) {
                // 1 without codes.
                let scale = scales.next().copied().unwrap_or(1.0);
                to.iter_mut().zip(row).for_each(|(to, element)| *to = element.widen() * scale);
            }
        }
        wide
    }

    /// Query heads per key/value head.
    fn share(&self) -> usize {
        self.problem.heads / self.problem.kv_heads
    }

    /// The positions visible to a token.
    fn span(&self, token: usize) -> Range<usize> {
        self.problem.span(self.first_position + token)
    }

    /// Number of threads that this much work justifies; `seen` counts the (query head, position) pairs.
    fn parts(&self, pool: &Pool, seen: usize) -> usize {
        pool.parts(seen.saturating_mul(2 * self.problem.head_dim))
    }

    /// The elements of a head at `positions`, all of which are stored: run by run of consecutive slots.
    fn runs<'k, E: Cached>(
        &self,
        ring: Ring<'k, E>,
        kv_head: usize,
        positions: &Range<usize>,
    ) -> Runs<'k, E> {
        let width = E::width(self.problem.head_dim);
        self.rows_at(ring, |segment| segment.elements, width, kv_head, positions)
    }

    /// The scales of a head at `positions`, split like the elements; empty if the elements are not codes.
    fn scales<'k, E: Cached>(
        &self,
        ring: Ring<'k, E>,
        kv_head: usize,
        positions: &Range<usize>,
    ) -> Runs<'k, f32> {
        if !E::Element::CODES {
            return [&[]; RUNS];
        }
        self.rows_at(ring, |segment| segment.scales, 1, kv_head, positions)
    }

    /// [`runs`](Self::runs) of positions within a prefill block: of a ring, before and after the wrap-around; of pages, one.
    fn block<'k, E: Cached>(
        &self,
        ring: Ring<'k, E>,
        kv_head: usize,
        positions: &Range<usize>,
    ) -> [&'k [E]; 2] {
        let [first, second, ..] = self.runs(ring, kv_head, positions);
        [first, second]
    }

    /// The scales of a [`block`](Self::block).
    fn block_scales<'k, E: Cached>(
        &self,
        ring: Ring<'k, E>,
        kv_head: usize,
        positions: &Range<usize>,
    ) -> [&'k [f32]; 2] {
        let [first, second, ..] = self.scales(ring, kv_head, positions);
        [first, second]
    }

    /// Rows of `width` at `positions` of a head: at most as many as a ring has, or as a chunk of decode attention.
    fn rows_at<'k, E, T>(
        &self,
        ring: Ring<'k, E>,
        rows: impl Fn(&Segment<'k, E>) -> &'k [T],
        width: usize,
        kv_head: usize,
        positions: &Range<usize>,
    ) -> Runs<'k, T> {
        let (capacity, mut at) = (self.capacity, positions.start);
        std::array::from_fn(|_| {
            let (segment, start) = (at / capacity % ring.0.len(), at % capacity);
            let count = (capacity - start).min(positions.end - at);
            at += count;
            &rows(&ring.0[segment])[(kv_head * capacity + start) * width..][..count * width]
        })
    }
}

/// Splits a list into at most `parts` contiguous shares of similar cost.
fn share_out<T>(items: Vec<T>, cost: impl Fn(&T) -> usize, parts: usize) -> Vec<Vec<T>> {
    let total = items.iter().map(&cost).fold(0, usize::saturating_add);
    let mut shares: Vec<Vec<T>> = (0..parts).map(|_| Vec::new()).collect();
    let mut done = 0usize;
    for item in items {
        // Midpoint of the item; in u128, because the product of two sizes may not fit a usize.
        let cost = cost(&item);
        let middle = done as u128 + cost as u128 / 2;
        let part = (middle * parts as u128 / total.max(1) as u128).min(parts as u128 - 1) as usize;
        shares[part].push(item);
        done = done.saturating_add(cost);
    }
    shares.retain(|share| !share.is_empty());
    shares
}

#[cfg(test)]
mod tests {
    use super::share_out;

    #[test]
    fn shares_are_contiguous_and_even() {
        for n in [0, 1, 2, 5, 100] {
            for parts in [1, 2, 3, 7] {
                let shares = share_out((0..n).collect(), |_| 3, parts);
                assert_eq!(shares.concat(), (0..n).collect::<Vec<usize>>());
                assert!(
                    shares.len() <= parts
                        && shares.iter().all(|s| !s.is_empty() && s.len() <= n.div_ceil(parts))
                );
            }
        }
        let shares = share_out(vec![1, 2, 3, 4, 5, 6, 7, 8], |&cost| cost, 2);
        assert_eq!(shares, [vec![1, 2, 3, 4, 5], vec![6, 7, 8]]);
        assert_eq!(share_out(vec![usize::MAX, usize::MAX], |&cost| cost, 2).concat().len(), 2);
    }
}

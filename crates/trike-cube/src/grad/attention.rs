//! Attention over packed documents, with memory linear in the number of tokens (after FlashAttention: Dao et al., 2022).

use cubecl::prelude::*;
use trike_core::AttentionSpec;

use super::check_apart;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range, check_shape};
use crate::math::exp;
use crate::plan::Settings;

/// Rows per cube; a row is one token and one query head of a key/value head, or one key.
pub(super) const ROWS: usize = 8;
/// Units per row.
pub(super) const LANES: usize = 8;
/// Score of masked positions: finite, so that no difference of two is NaN.
pub(super) const LOWEST: f32 = -1e37;

/// Packed documents, whose tokens do not attend to each other.
#[derive(Clone, Debug)]
pub struct DocumentBounds {
    /// First token of the document of each token.
    pub(super) starts: Buffer<u32>,
    /// End of the document of each token.
    pub(super) ends: Buffer<u32>,
}

impl DocumentBounds {
    /// Uploads the start and end of documents of these lengths.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for zero tokens, or more than `2^30`.
    pub fn upload(device: &CubeDevice, lengths: &[usize]) -> Result<Self> {
        let tokens = lengths.iter().fold(0usize, |sum, length| sum.saturating_add(*length));
        check_range("tokens of all documents", 1, 1 << 30, tokens)?;
        let (mut starts, mut ends, mut start) = (Vec::new(), Vec::new(), 0u32);
        for &length in lengths {
            // Cannot overflow: bounded by the checked total.
            let end = start + length as u32;
            starts.extend(std::iter::repeat_n(start, length));
            ends.extend(std::iter::repeat_n(end, length));
            start = end;
        }
        Ok(Self { starts: device.upload(&starts)?, ends: device.upload(&ends)? })
    }

    /// Number of tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.starts.len()
    }

    /// Bytes on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.starts.bytes() + self.ends.bytes()
    }
}

/// Compile-time parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGradForm {
    /// Head dimension.
    pub head_dim: usize,
    /// Query heads per key/value head.
    pub share: usize,
    /// Lines per tile: keys, or queries if a row is a key.
    pub lines: usize,
}

impl AttentionGradForm {
    /// The parameters for an attention.
    #[must_use]
    pub fn new(spec: &AttentionSpec) -> Self {
        let lines = if spec.head_dim <= 64 { 16 } else { 8 };
        Self { head_dim: spec.head_dim, share: spec.heads / spec.kv_heads, lines }
    }

    /// Elements of a head per unit.
    pub(super) fn slots(self) -> usize {
        self.head_dim.div_ceil(LANES)
    }

    /// Stride of a tile's lines, padded by one so that lines start in different banks.
    pub(super) fn stride(self) -> usize {
        self.head_dim + 1
    }

    /// Floats of a tile.
    pub(super) fn tile(self) -> usize {
        self.lines * self.stride()
    }

    /// Floats of shared memory for exchanges between the units of a row, one per line.
    pub(super) fn exchange(self) -> usize {
        ROWS * (self.lines + 1)
    }
}

/// Arguments of all attention kernels.
#[derive(Clone, Copy, Debug)]
pub struct AttentionGradShape {
    /// Compile-time parameters.
    pub form: AttentionGradForm,
    /// Tokens of all documents.
    pub tokens: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Number of visible tokens, including the query's own.
    pub window: u32,
}

/// Checks the lengths of queries, keys and values.
pub(super) fn check(
    spec: &AttentionSpec,
    [q, k, v]: [&Buffer<f32>; 3],
    documents: &DocumentBounds,
) -> Result<AttentionGradShape> {
    check_range("heads of attention", 1, 1 << 16, spec.heads)?;
    check_range("key/value heads of attention", 1, spec.heads, spec.kv_heads)?;
    check_range("head_dim of attention", 1, 1 << 10, spec.head_dim)?;
    check_range("window of attention", 1, usize::MAX, spec.window.unwrap_or(1))?;
    if !spec.heads.is_multiple_of(spec.kv_heads) {
        return Err(CubeError::NotMultiple {
            what: "query heads of attention",
            unit: spec.kv_heads,
            got: spec.heads,
        });
    }
    if !spec.scale.is_finite() {
        return Err(CubeError::NonFinite { what: "scale of attention", index: 0, value: spec.scale });
    }
    let tokens = documents.tokens();
    check_len("queries", check_shape("queries", tokens, spec.heads * spec.head_dim)?, q.len())?;
    check_len("keys", tokens * spec.kv_heads * spec.head_dim, k.len())?;
    check_len("values", tokens * spec.kv_heads * spec.head_dim, v.len())?;
    let window = spec.window.and_then(|window| u32::try_from(window).ok()).unwrap_or(u32::MAX);
    Ok(AttentionGradShape {
        form: AttentionGradForm::new(spec),
        tokens: tokens as u32,
        kv_heads: spec.kv_heads as u32,
        window,
    })
}

/// Settings for `rows` rows per key/value head and `tiles` tiles in shared memory.
pub fn settings(
    shape: &AttentionGradShape,
    rows: usize,
    tiles: usize,
    exchanges: usize,
    bindings: usize,
) -> Settings {
    let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Settings {
        cubes: [side(rows.div_ceil(ROWS)), shape.kv_heads, 1],
        units: [(ROWS * LANES) as u32, 1],
        shared_bytes: 4 * (tiles * shape.form.tile() + exchanges * shape.form.exchange()),
        bindings,
    }
}

/// The first token that a token attends to.
#[cube]
pub(super) fn first_visible(starts: &[u32], token: usize, window: u32) -> usize {
    let end = token as u32 + 1;
    max(starts[token], end - min(window, end)) as usize
}

/// Copies one head of `lines` rows of `width` elements into a tile; lines from `end` on are zero.
#[cube]
pub(super) fn load(
    from: &[f32],
    tile: &mut Shared<[f32]>,
    first: usize,
    end: usize,
    width: usize,
    offset: usize,
    #[comptime] form: AttentionGradForm,
) {
    let mut n = UNIT_POS as usize;
    while n < comptime!(form.lines * form.head_dim) {
        let (line, d) = (n / comptime!(form.head_dim), n % comptime!(form.head_dim));
        let row = clamp_max(first + line, end - 1);
        tile[line * comptime!(form.stride()) + d] =
            select(first + line < end, from[row * width + offset + d], 0.0f32);
        n += comptime!(ROWS * LANES);
    }
}

/// The dot product of a tile's line with the head that starts at `at`.
#[cube]
pub(super) fn dot(
    x: &[f32],
    at: usize,
    tile: &Shared<[f32]>,
    line: usize,
    #[comptime] form: AttentionGradForm,
) -> f32 {
    let mut sum = 0.0f32;
    for d in 0..comptime!(form.head_dim) {
        sum += x[at + d] * tile[line * comptime!(form.stride()) + d];
    }
    sum
}

/// Cube `(block, key/value head)` computes rows `8 block ..`; unit `(r, g)` has lines `g, g + 8, ..` of the tile's scores of row
/// `r` and elements `g, g + 8, ..` of its output. Loop bounds depend only on the cube.
#[cube(launch_unchecked)]
fn forward(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    starts: &[u32],
    out: &mut [f32],
    tokens: u32,
    kv_heads: u32,
    window: u32,
    scale: f32,
    #[comptime] form: AttentionGradForm,
) {
    let (r, g) = (UNIT_POS as usize / LANES, UNIT_POS as usize % LANES);
    let (dim, share, lines) = (form.head_dim, form.share, form.lines);
    let kv_head = CUBE_POS_Y as usize;
    let kv_width = kv_heads as usize * dim;
    let width = kv_width * share;
    let last = tokens as usize - 1;
    let block = CUBE_POS_X as usize * ROWS;
    let first_key = first_visible(starts, clamp_max(block / share, last), window);
    let end = clamp_max((block + comptime!(ROWS - 1)) / share, last) + 1;

    // Rows past the last one repeat its token and are not stored.
    let row = block + r;
    let token = clamp_max(row / share, last);
    let start = first_visible(starts, token, window);
    let at = token * width + (kv_head * share + row % share) * dim;

    let mut tile = Shared::<[f32]>::new_slice(comptime!(form.tile()));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(form.exchange()));
    let mine = r * comptime!(lines + 1);
    let mut sums = Array::<f32>::new(comptime!(form.slots()));
    #[unroll]
    for slot in 0..comptime!(form.slots()) {
        sums[slot] = 0.0;
    }
    let mut scores = Array::<f32>::new(comptime!(lines / LANES));
    let mut largest = LOWEST.runtime();
    let mut total = 0.0f32;
    for t in 0..(end - first_key).div_ceil(lines) {
        let first = first_key + t * lines;
        sync_cube();
        load(k, &mut tile, first, end, kv_width, kv_head * dim, form);
        sync_cube();
        #[unroll]
        for i in 0..comptime!(lines / LANES) {
            let line = g + comptime!(i * LANES);
            let key = first + line;
            let score = dot(q, at, &tile, line, form) * scale;
            scores[i] = select(key >= start && key <= token, score, LOWEST);
            weights[mine + line] = scores[i];
        }
        sync_cube();
        let mut most = largest;
        for line in 0..lines {
            most = max(most, weights[mine + line]);
        }
        let kept = exp(largest - most);
        largest = most;
        load(v, &mut tile, first, end, kv_width, kv_head * dim, form);
        sync_cube();
        #[unroll]
        for i in 0..comptime!(lines / LANES) {
            let line = g + comptime!(i * LANES);
            let key = first + line;
            weights[mine + line] = select(key >= start && key <= token, exp(scores[i] - most), 0.0f32);
        }
        sync_cube();
        total *= kept;
        for line in 0..lines {
            total += weights[mine + line];
        }
        #[unroll]
        for slot in 0..comptime!(form.slots()) {
            let d = clamp_max(g + comptime!(slot * LANES), dim - 1);
            let mut sum = sums[slot] * kept;
            for line in 0..lines {
                sum += weights[mine + line] * tile[line * comptime!(form.stride()) + d];
            }
            sums[slot] = sum;
        }
    }
    if row < tokens as usize * share {
        #[unroll]
        for slot in 0..comptime!(form.slots()) {
            let d = g + comptime!(slot * LANES);
            if d < dim {
                out[at + d] = sums[slot] / total;
            }
        }
    }
}

impl CubeDevice {
    /// Causal softmax attention within each document. `q` and `out` are `tokens x heads x head_dim`, `k` and `v` are `tokens x
    /// kv_heads x head_dim`, already rotated.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`], [`CubeError::Range`] and [`CubeError::NotMultiple`] for shapes that do not match,
    /// [`CubeError::NonFinite`] for the scale, [`CubeError::Overlap`], [`CubeError::Limit`] for heads too large for the shared
    /// memory of the device, and those of the launch.
    pub fn documents_attention(
        &self,
        spec: &AttentionSpec,
        qkv: [&Buffer<f32>; 3],
        documents: &DocumentBounds,
        out: &Buffer<f32>,
    ) -> Result<()> {
        let shape = check(spec, qkv, documents)?;
        check_len("output of attention", qkv[0].len(), out.len())?;
        check_apart("inputs and output of attention", out, &qkv)?;
        let rows = documents.tokens() * shape.form.share;
        let launch = Launch::new("documents", &shape.form, settings(&shape, rows, 1, 1, 5));
        self.launch(&launch, &[out], |client, cubes, units| {
            let [q, k, v] = qkv.map(Buffer::arg);
            let AttentionGradShape { form, tokens, kv_heads, window } = shape;
            let starts = documents.starts.arg();
            // SAFETY: `check` checked the lengths of all inputs; starts are tokens, and the kernel clamps tokens and keys to them.
            unsafe {
                forward::launch_unchecked(
                    client,
                    cubes,
                    units,
                    q,
                    k,
                    v,
                    starts,
                    out.arg(),
                    tokens,
                    kv_heads,
                    window,
                    spec.scale,
                    form,
                );
            }
        })
    }
}

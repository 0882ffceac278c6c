//! Causal attention over a ring-buffer KV cache; keys and values shared by query heads (GQA) are not expanded.
//!
//! [`CubeDevice::store`] appends keys and values to a [`CubeKvCache`], [`CubeDevice::rotate_and_store`] rotates them and the
//! queries as well, and [`CubeDevice::attention`] computes attention over the cache; [`CubeDevice::attention_masked`] only over the
//! key blocks of a [`BlockMask`]. Single tokens of several sequences with caches from [`CubeKvCache::several`] form a
//! [`TokenBatch`]: one launch of each operation instead of one per sequence.

mod cache;
pub(crate) mod codes;
mod combine;
mod decode;
mod index;
mod joined;
mod keys;
mod mask;
mod mma;
mod plan;
pub(crate) mod positions;
mod prefill;
mod prompt;
mod ptx;
mod several;
mod store;
mod store_codes;
mod walk;
mod widen;

use std::f32::consts::LOG2_E;

use cubecl::client::Client;
use cubecl::prelude::{BufferArg, ComptimeOptionArgs, CubeCount, CubeDim, Float, Numeric};
use half::f16;
pub use trike_core::{AttentionSpec, KvPrecision};

pub(crate) use cache::KvBuffer;
pub use cache::{CacheSegment, CacheShape, CubeKvCache};
pub use mask::{BlockBitmap, BlockMask, MaskedWork};
pub use plan::{AttentionBlueprint, AttentionProblem, horizon};
pub(crate) use positions::MAX_POSITION;
pub use positions::Positions;
pub use several::{CacheToken, TokenBatch, TokenTable};

use crate::device::{Buffer, COUNTERS, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_shape};
use crate::plan::{KernelProblem, Settings, Strategy, spread};

impl CubeDevice {
    /// Softmax attention of the tokens of a segment over its cache, which must already contain their own keys and values. `q`
    /// and `out` have the shape `positions x heads x head_dim`; other rows of `out` are unchanged.
    ///
    /// The query at position `p` attends to positions `max(0, p + 1 - window)..=p`. Scores, their maximum, exponentials and sums
    /// are f32, except that [`AttentionBlueprint::Mma`] multiplies f16. When positions are split across cubes, the partial sums use
    /// temporary device memory between the two launches.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for queries or an output of the wrong length, [`CubeError::Range`] for rows that do not exist or that
    /// attend to more positions than the cache holds, [`CubeError::Mismatch`] for positions that are not consecutive,
    /// [`CubeError::NonFinite`] for the scale, [`CubeError::Overlap`], [`CubeError::Capture`] within a capture for any kernel other
    /// than [`AttentionBlueprint::Decode`], and errors of [`KernelProblem::plan`] and of the launch.
    ///
    /// A recorded launch reads the positions at replay; they must have the same [`horizon`].
    ///
    /// With a cache from [`CubeKvCache::with_keys`], a single token attends only to selected positions.
    pub fn attention(
        &self,
        spec: &AttentionSpec,
        q: &Buffer<f32>,
        segment: &CacheSegment<'_>,
        out: &Buffer<f32>,
        strategy: &Strategy<AttentionBlueprint>,
    ) -> Result<()> {
        self.attend(&Call::of_segment(spec, q, segment)?, strategy, out)
    }

    /// As [`CubeDevice::attention`], but a query attends only to the visible part of the key blocks that `mask` has for its query
    /// block. Masked key blocks are neither read nor multiplied, so the time is proportional to the remaining ones.
    ///
    /// A query always sees its own position, because a [`BlockBitmap`] includes the diagonal. The mask may cover more positions
    /// than the segment, so that the chunks of a prompt can share one.
    ///
    /// Without a window, a full mask gives results bit-identical to [`CubeDevice::attention`] with the same kernel.
    ///
    /// # Errors
    ///
    /// Errors of [`CubeDevice::attention`]; [`CubeError::Blocks`] for a mask with another number of KV heads or that does not cover
    /// the segment's positions, [`CubeError::Unsupported`] for [`AttentionBlueprint::Decode`], which [`Strategy::Inferred`] does
    /// not choose here, and [`CubeError::Capture`] within every capture.
    pub fn attention_masked(
        &self,
        spec: &AttentionSpec,
        q: &Buffer<f32>,
        segment: &CacheSegment<'_>,
        mask: &BlockMask,
        out: &Buffer<f32>,
        strategy: &Strategy<AttentionBlueprint>,
    ) -> Result<()> {
        let mut call = Call::of_segment(spec, q, segment)?;
        let first = call.problem.first_position;
        let positions = first..first + call.problem.tokens;
        mask.bitmap().check(spec.kv_heads, &positions)?;
        call.problem.mask = Some(mask.bitmap().work(spec.kv_heads, &positions, spec.window));
        call.mask = Some(mask);
        self.attend(&call, strategy, out)
    }

    /// As [`CubeDevice::attention`], for single tokens of several sequences.
    ///
    /// # Errors
    ///
    /// Errors of [`CubeDevice::attention`], and [`CubeError::Apart`].
    ///
    /// A recorded launch reads the tokens at replay; the largest of their positions must have the same [`horizon`].
    pub fn attention_of_tokens(
        &self,
        spec: &AttentionSpec,
        q: &Buffer<f32>,
        batch: &TokenBatch<'_>,
        out: &Buffer<f32>,
        strategy: &Strategy<AttentionBlueprint>,
    ) -> Result<()> {
        let cache = batch.first("queries of attention", q.len(), spec.heads)?;
        let problem = problem_of(spec, cache, 1, batch.len(), batch.last())?;
        if batch.caches.iter().any(|cache| cache.overlaps(out)) {
            return Err(CubeError::Overlap { what: "output of attention and an input" });
        }
        if self.is_capturing() {
            batch.keep_within(cache, MAX_POSITION);
        }
        let of_rows = batch.tokens.table();
        let call =
            Call { problem, q, of_rows, cache, first_row: 0, scale: spec.scale, mask: None, chosen: None };
        self.attend(&call, strategy, out)
    }

    /// The positions that [`CubeDevice::attention`] of a single token attends to, in ascending order, for each KV head; `None` for
    /// all visible ones. `q` is as in that call, and the cache must come from [`CubeKvCache::with_keys`].
    ///
    /// # Errors
    ///
    /// Errors of [`CubeDevice::attention`] and [`CubeDevice::read`].
    pub fn selected_positions(
        &self,
        spec: &AttentionSpec,
        q: &Buffer<f32>,
        segment: &CacheSegment<'_>,
    ) -> Result<Option<Vec<Vec<u32>>>> {
        let call = Call::of_segment(spec, q, segment)?;
        call.problem.validate()?;
        let Some((positions, selected)) = self.select_keys(&call)? else { return Ok(None) };
        let positions = self.read(&positions)?;
        Ok(Some(positions.chunks(selected.total()).map(<[u32]>::to_vec).collect()))
    }

    fn attend(
        &self,
        call: &Call<'_>,
        strategy: &Strategy<AttentionBlueprint>,
        out: &Buffer<f32>,
    ) -> Result<()> {
        let Call { q, cache, scale, .. } = call;
        check_len("output of attention", q.len(), out.len())?;
        if !scale.is_finite() {
            return Err(CubeError::NonFinite { what: "scale of attention", index: 0, value: *scale });
        }
        if out.overlaps(q) || cache.overlaps(out) {
            return Err(CubeError::Overlap { what: "output of attention and an input" });
        }
        let chosen = self.select_keys(call)?;
        let call = &match &chosen {
            // Planned like a context that consists of the selected positions: keys already contain their rotation.
            Some((positions, selected)) => call.of_chosen(positions, selected.total()),
            None => *call,
        };
        let problem = &call.problem;
        let several = problem.sequences > 1;
        let (blueprint, settings) = problem.plan(strategy, self.capabilities())?;
        let one = problem.tokens == 1;
        if self.is_capturing() && !(one && matches!(blueprint, AttentionBlueprint::Decode { .. })) {
            // The position is a launch argument of these kernels, and so is the start of a window.
            return Err(CubeError::Capture { what: "attention of prompts" });
        }
        let wide;
        let of_wide;
        let call = match &cache.k {
            KvBuffer::Int8(codes) if !matches!(blueprint, AttentionBlueprint::Decode { .. }) => {
                wide = self.widen(call, codes)?;
                of_wide = call.over(&wide);
                &of_wide
            }
            _ => call,
        };
        let Call { problem, cache, .. } = call;
        let shape = problem.cache;
        match blueprint {
            AttentionBlueprint::Decode { units, heads, splits } => {
                let form = problem.decode_form(units, heads, splits, self.capabilities());
                let form = decode::Form { chosen: call.chosen.is_some(), ..form };
                let settings =
                    Settings { bindings: settings.bindings + usize::from(form.chosen), ..settings };
                let launch = Launch::new("attention/decode", &(form, shape.precision, several), settings);
                if splits == 1 {
                    return self.launch(&launch, &[out], |client, cubes, units| {
                        call.decode(client, cubes, units, form, Output { all: out, joined: None });
                    });
                }
                let parts = self.empty(problem.parts(splits)?)?;
                if form.ptx && (settings.cubes[1] as usize * settings.cubes[2] as usize) <= COUNTERS {
                    let arrived = self.counters()?;
                    return self.launch(&launch, &[&parts, out], |client, cubes, units| {
                        let joined = Some([parts.arg(), arrived.arg()]);
                        call.decode(client, cubes, units, form, Output { all: out, joined });
                    });
                }
                self.launch(&launch, &[&parts], |client, cubes, units| {
                    call.decode(client, cubes, units, form, Output { all: &parts, joined: None });
                })?;
                self.combine(call, &parts, splits, out)
            }
            AttentionBlueprint::Prefill => {
                let form = problem.prefill_form();
                let launch = Launch::new("attention/prefill", &(form, shape.precision), settings);
                self.launch(&launch, &[out], |client, cubes, units| match cache.k {
                    KvBuffer::F16(_) => call.prefill::<f16>(client, cubes, units, form, out),
                    KvBuffer::F32(_) | KvBuffer::Int8(_) => {
                        call.prefill::<f32>(client, cubes, units, form, out);
                    }
                })
            }
            AttentionBlueprint::Mma { planes } => {
                let form = problem.mma_form(planes);
                let launch = Launch::new("attention/mma", &form, settings);
                self.launch(&launch, &[out], |client, cubes, units| {
                    call.mma(client, cubes, units, form, out);
                })
            }
        }
    }

    fn combine(&self, call: &Call<'_>, parts: &Buffer<f32>, splits: usize, out: &Buffer<f32>) -> Result<()> {
        /// Units per cube.
        const UNITS: u32 = 128;
        let problem = &call.problem;
        let (rows, head_dim) = (problem.rows() * problem.heads, problem.cache.head_dim);
        let settings = Settings { cubes: spread(rows), ..Settings::linear(1, UNITS, 3) };
        let (ptx, several) = (self.capabilities().ptx, problem.sequences > 1);
        let launch = Launch::new("attention/combine", &(head_dim, ptx, several), settings);
        self.launch(&launch, &[out], |client, cubes, units| {
            let first = call.first_row * problem.heads;
            let [count, first, heads, splits] = [rows, first, problem.heads, splits].map(|n| n as u32);
            let (parts, out, unit) = (parts.arg(), out.arg(), UNITS as usize);
            if several {
                let table = call.of_rows.arg();
                // SAFETY: as below; the rows of the table are within `out` (`TokenBatch::first`).
                unsafe {
                    combine::combine_several::launch_unchecked(
                        client, cubes, units, parts, table, out, count, heads, splits, head_dim, unit, ptx,
                    );
                }
                return;
            }
            // SAFETY: `parts` has the length of `AttentionProblem::parts`, and the length of `out` was checked against all rows
            // of the batch.
            unsafe {
                combine::combine::launch_unchecked(
                    client, cubes, units, parts, out, count, first, splits, head_dim, unit, ptx,
                );
            }
        })
    }
}

/// The problem of `tokens` tokens in each of `sequences` sequences with caches of this shape.
fn problem_of(
    spec: &AttentionSpec,
    cache: &CubeKvCache,
    tokens: usize,
    sequences: usize,
    first_position: usize,
) -> Result<AttentionProblem> {
    let (AttentionSpec { heads, kv_heads, head_dim, window, .. }, shape) = (*spec, cache.shape());
    check_len("key/value heads of a cache", kv_heads, shape.kv_heads)?;
    check_len("head_dim of a cache", head_dim, shape.head_dim)?;
    let problem =
        AttentionProblem { heads, window, tokens, sequences, first_position, cache: shape, mask: None };
    problem.validate()?;
    Ok(problem)
}

/// Destination of the decode kernel.
struct Output<'a> {
    /// The results or, without `joined` and with split positions, the partial results.
    all: &'a Buffer<f32>,
    /// Partial results and counters of [`joined::decode_joined`].
    joined: Option<[BufferArg; 2]>,
}

/// Checked arguments of a call.
#[derive(Clone, Copy)]
struct Call<'a> {
    problem: AttentionProblem,
    q: &'a Buffer<f32>,
    /// The position of each row, or the table of several sequences.
    of_rows: &'a Buffer<u32>,
    /// The cache, or the first of several sequences' caches.
    cache: &'a CubeKvCache,
    first_row: usize,
    scale: f32,
    mask: Option<&'a BlockMask>,
    /// The selected positions.
    chosen: Option<&'a Buffer<u32>>,
}

impl<'a> Call<'a> {
    /// The call for the rows of a segment, without a mask.
    fn of_segment(spec: &AttentionSpec, q: &'a Buffer<f32>, segment: &CacheSegment<'a>) -> Result<Self> {
        let CacheSegment { rows, positions, cache } = segment;
        let first_position = positions.first_of(rows)?;
        let problem = problem_of(spec, cache, rows.len(), 1, first_position)?;
        let count = check_shape(
            "queries of a batch",
            positions.values().len(),
            spec.heads.saturating_mul(spec.head_dim),
        )?;
        check_len("queries of attention", count, q.len())?;
        let of_rows = positions.buffer();
        Ok(Self {
            problem,
            q,
            of_rows,
            cache,
            first_row: rows.start,
            scale: spec.scale,
            mask: None,
            chosen: None,
        })
    }

    /// The call for `count` selected positions per KV head.
    fn of_chosen<'b>(&self, positions: &'b Buffer<u32>, count: usize) -> Call<'b>
    where
        'a: 'b,
    {
        let problem = AttentionProblem { first_position: count - 1, window: None, ..self.problem };
        Call { problem, chosen: Some(positions), ..*self }
    }

    fn chosen_arg(&self) -> ComptimeOptionArgs<decode::Chosen> {
        match self.chosen {
            // Fewer positions than the cache has elements.
            Some(chosen) => ComptimeOptionArgs::Some(decode::ChosenLaunch::new(
                chosen.arg(),
                self.problem.first_position as u32 + 1,
            )),
            None => ComptimeOptionArgs::None,
        }
    }

    /// The same call over a copy of the visible positions.
    fn over<'b>(&self, wide: &'b CubeKvCache) -> Call<'b>
    where
        'a: 'b,
    {
        Call { problem: AttentionProblem { cache: wide.shape(), ..self.problem }, cache: wide, ..*self }
    }

    /// The window; `u32::MAX` for no window.
    fn window(&self) -> u32 {
        self.problem.window.and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
    }

    fn decode(&self, client: &Client, cubes: CubeCount, units: CubeDim, form: decode::Form, out: Output<'_>) {
        let n = form.width;
        match self.cache.k {
            KvBuffer::F32(_) => self.decode_as::<f32, f32>(client, cubes, units, n, form, out),
            // Other compilers unpack words at the same cost, or have no vectors of eight f16.
            KvBuffer::F16(_) if form.ptx && n > 1 => {
                self.decode_as::<f16, u32>(client, cubes, units, n / 2, form, out);
            }
            KvBuffer::F16(_) => self.decode_as::<f16, f16>(client, cubes, units, n, form, out),
            KvBuffer::Int8(_) => self.decode_as::<f32, u32>(client, cubes, units, form.parts, form, out),
        }
    }

    /// A load of the form's width is `words` numbers of type `S`.
    fn decode_as<E: Float, S: Numeric>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        words: usize,
        form: decode::Form,
        out: Output<'_>,
    ) {
        let (width, n) = (form.width, form.floats());
        let m = form.heads.next_power_of_two();
        let (shape, window) = (self.problem.cache, self.window());
        let [first, heads, capacity] = [self.first_row, shape.kv_heads, shape.capacity].map(|n| n as u32);
        let (q, of_rows) = (self.q.vectors(n), self.of_rows.arg());
        let (joined, out) = (out.joined, out.all.arg());
        // PTX weights are powers of two.
        let scale = if form.ptx { self.scale * LOG2_E } else { self.scale };
        let several = self.problem.sequences > 1;
        let all = if several { &self.cache.all() } else { self.cache };
        let (k, v) = (all.k.vectors(width), all.v.vectors(width));
        let scales = all.scales_arg();
        match (several, joined) {
            (true, None) => {
                // SAFETY: as below; rows and places of the table were checked by `TokenBatch::first`.
                unsafe {
                    decode::decode_several::launch_unchecked::<E, S>(
                        client, cubes, units, n, words, m, q, k, v, scales, of_rows, out, heads, capacity,
                        window, scale, form,
                    );
                }
            }
            (false, None) => {
                // SAFETY: `CubeDevice::attend` and its callers checked the lengths; slots are below the capacity, heads past the
                // last are clamped, rows are within `of_rows`.
                unsafe {
                    decode::decode::launch_unchecked::<E, S>(
                        client,
                        cubes,
                        units,
                        n,
                        words,
                        m,
                        q,
                        k,
                        v,
                        scales,
                        of_rows,
                        out,
                        first,
                        heads,
                        capacity,
                        window,
                        scale,
                        self.chosen_arg(),
                        form,
                    );
                }
            }
            (true, Some([parts, arrived])) => {
                // SAFETY: as for `decode_several` and `decode_joined`.
                unsafe {
                    joined::decode_several_joined::launch_unchecked::<E, S>(
                        client, cubes, units, n, words, m, q, k, v, scales, of_rows, parts, arrived, out,
                        heads, capacity, window, scale, form,
                    );
                }
            }
            (false, Some([parts, arrived])) => {
                // SAFETY: as for `decode`; `parts` has the length of `AttentionProblem::parts`, and there are not more cubes
                // along y and z than counters.
                unsafe {
                    joined::decode_joined::launch_unchecked::<E, S>(
                        client,
                        cubes,
                        units,
                        n,
                        words,
                        m,
                        q,
                        k,
                        v,
                        scales,
                        of_rows,
                        parts,
                        arrived,
                        out,
                        first,
                        heads,
                        capacity,
                        window,
                        scale,
                        self.chosen_arg(),
                        form,
                    );
                }
            }
        }
    }
}

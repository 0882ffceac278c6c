//! Causal attention over a ring-buffer KV cache; keys and values shared by query heads (GQA) are not expanded.
//!
//! [`Device::store`] appends keys and values to a [`KvCache`], [`Device::rotate_and_store`] rotates them and the queries as well,
//! and [`Device::attention`] computes attention over the cache.

mod cache;
mod decode;
mod mma;
mod plan;
mod prefill;
mod ptx;

use std::f32::consts::LOG2_E;

use cubecl::client::Client;
use cubecl::prelude::{CubeCount, CubeDim, Float, Numeric};
use half::f16;
pub use trike_core::{AttentionSpec, KvPrecision};

pub use cache::{CacheShape, KvCache, Positions, Segment};
pub(crate) use cache::{KvBuffer, MAX_POSITION};
pub use plan::{AttentionBlueprint, AttentionProblem, horizon};

use crate::device::{Buffer, Device, Launch};
use crate::error::{CubeError, Result, check_len, check_shape};
use crate::plan::{Plan, Settings, Strategy, spread};

impl Device {
    /// Softmax attention of the tokens of a segment over its cache, which must already contain their own keys and values. `q`
    /// and `out` have the shape `positions x heads x head_dim`; other rows of `out` are unchanged.
    ///
    /// The query at position `p` attends to positions `max(0, p + 1 - window)..=p`. Scores, their maximum, exponentials and
    /// sums are f32, but [`AttentionBlueprint::Mma`] multiplies f16. When positions are split across cubes, the partial sums
    /// use temporary device memory between the two launches.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] for queries or an output of the wrong length, [`CubeError::Range`] for rows that do not exist or
    /// that attend to more positions than the cache holds, [`CubeError::NotConsecutive`], [`CubeError::NonFinite`] for the
    /// scale, [`CubeError::Overlap`], [`CubeError::Capture`] within a capture for any kernel other than
    /// [`AttentionBlueprint::Decode`], and those of [`Plan::plan`] and of the launch.
    ///
    /// A recorded launch reads the positions at replay; they must have the same [`horizon`].
    pub fn attention(
        &self,
        spec: &AttentionSpec,
        q: &Buffer<f32>,
        segment: &Segment<'_>,
        out: &Buffer<f32>,
        strategy: &Strategy<AttentionBlueprint>,
    ) -> Result<()> {
        let Segment { rows, positions, cache } = segment;
        let first_position = positions.first_of(rows)?;
        let (AttentionSpec { heads, kv_heads, head_dim, scale, window }, shape) = (*spec, cache.shape());
        check_len("key/value heads of a cache", kv_heads, shape.kv_heads)?;
        check_len("head_dim of a cache", head_dim, shape.head_dim)?;
        let problem = AttentionProblem { heads, window, tokens: rows.len(), first_position, cache: shape };
        problem.validate()?;
        let count = check_shape(
            "queries of a batch",
            positions.values().len(),
            heads.saturating_mul(shape.head_dim),
        )?;
        check_len("queries of attention", count, q.len())?;
        check_len("output of attention", count, out.len())?;
        if !scale.is_finite() {
            return Err(CubeError::NonFinite { what: "scale of attention", index: 0, value: scale });
        }
        if out.overlaps(q) || cache.overlaps(out) {
            return Err(CubeError::Overlap { what: "output of attention and an input" });
        }
        let (blueprint, settings) = problem.plan(strategy, self.capabilities())?;
        let one = rows.len() == 1;
        if self.is_capturing() && !(one && matches!(blueprint, AttentionBlueprint::Decode { .. })) {
            // Their position is a launch argument, and so is the start of a window.
            return Err(CubeError::Capture { what: "attention of prompts" });
        }
        let call = Call { problem: &problem, q, positions, cache, first_row: rows.start, scale };
        match blueprint {
            AttentionBlueprint::Decode { units, heads, splits } => {
                let form = problem.decode_form(units, heads, splits, self.capabilities());
                let launch = Launch::new("attention/decode", &(form, shape.precision), settings);
                if splits == 1 {
                    return self.launch(&launch, &[out], |client, cubes, units| {
                        call.decode(client, cubes, units, form, out);
                    });
                }
                let parts = self.empty(problem.parts(splits)?)?;
                self.launch(&launch, &[&parts], |client, cubes, units| {
                    call.decode(client, cubes, units, form, &parts);
                })?;
                self.combine(&problem, &parts, rows.start, splits, out)
            }
            AttentionBlueprint::Prefill => {
                let form = problem.prefill_form();
                let launch = Launch::new("attention/prefill", &(form, shape.precision), settings);
                self.launch(&launch, &[out], |client, cubes, units| match cache.k {
                    KvBuffer::F32(_) => call.prefill::<f32>(client, cubes, units, form, out),
                    KvBuffer::F16(_) => call.prefill::<f16>(client, cubes, units, form, out),
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

    fn combine(
        &self,
        problem: &AttentionProblem,
        parts: &Buffer<f32>,
        first_row: usize,
        splits: usize,
        out: &Buffer<f32>,
    ) -> Result<()> {
        /// Units per cube.
        const UNITS: u32 = 128;
        let (rows, head_dim) = (problem.tokens * problem.heads, problem.cache.head_dim);
        let settings = Settings { cubes: spread(rows), ..Settings::linear(1, UNITS, 2) };
        let ptx = self.capabilities().ptx;
        let launch = Launch::new("attention/combine", &(head_dim, ptx), settings);
        self.launch(&launch, &[out], |client, cubes, units| {
            let [count, first, splits] = [rows, first_row * problem.heads, splits].map(|n| n as u32);
            let (parts, out) = (parts.arg(), out.arg());
            // SAFETY: `parts` has the length of `AttentionProblem::parts`, and the length of `out` was checked against all rows
            // of the batch.
            unsafe {
                decode::combine::launch_unchecked(
                    client,
                    cubes,
                    units,
                    parts,
                    out,
                    count,
                    first,
                    splits,
                    head_dim,
                    UNITS as usize,
                    ptx,
                );
            }
        })
    }
}

/// Checked arguments of a call.
struct Call<'a> {
    problem: &'a AttentionProblem,
    q: &'a Buffer<f32>,
    positions: &'a Positions,
    cache: &'a KvCache,
    first_row: usize,
    scale: f32,
}

impl Call<'_> {
    /// The window; `u32::MAX` for no window.
    fn window(&self) -> u32 {
        self.problem.window.and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
    }

    fn decode(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: decode::Form,
        out: &Buffer<f32>,
    ) {
        let n = form.width;
        match self.cache.k {
            KvBuffer::F32(_) => self.decode_as::<f32, f32>(client, cubes, units, n, form, out),
            // Other compilers take words apart at no better time, or have no vectors of eight f16.
            KvBuffer::F16(_) if form.ptx && n > 1 => {
                self.decode_as::<f16, u32>(client, cubes, units, n / 2, form, out);
            }
            KvBuffer::F16(_) => self.decode_as::<f16, f16>(client, cubes, units, n, form, out),
        }
    }

    /// `words` numbers of type `S` are a vector of the form's width.
    fn decode_as<E: Float, S: Numeric>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        words: usize,
        form: decode::Form,
        out: &Buffer<f32>,
    ) {
        let n = form.width;
        let (q, k, v) = (self.q.vectors(n), self.cache.k.vectors(n), self.cache.v.vectors(n));
        let shape = self.problem.cache;
        let [first, heads, capacity] = [self.first_row, shape.kv_heads, shape.capacity].map(|n| n as u32);
        let (positions, out) = (self.positions.buffer().arg(), out.arg());
        // SAFETY: `Device::attention` checked the lengths; slots are below the capacity, heads past the last are clamped, rows
        // are within `positions`.
        unsafe {
            decode::decode::launch_unchecked::<E, S>(
                client,
                cubes,
                units,
                n,
                words,
                form.heads.next_power_of_two(),
                q,
                k,
                v,
                positions,
                out,
                first,
                heads,
                capacity,
                self.window(),
                // For PTX weights are powers of two.
                if form.ptx { self.scale * LOG2_E } else { self.scale },
                form,
            );
        }
    }

    fn mma(&self, client: &Client, cubes: CubeCount, units: CubeDim, form: mma::Form, out: &Buffer<f32>) {
        let (q, k, v, out) =
            (self.q.vectors(2), self.cache.k.vectors(8), self.cache.v.vectors(8), out.vectors(2));
        let [tokens, first, position, heads, capacity] = self.sizes();
        // SAFETY: as in `decode_as`; tokens past the last are clamped and not stored.
        unsafe {
            mma::mma::launch_unchecked(
                client,
                cubes,
                units,
                q,
                k,
                v,
                out,
                tokens,
                first,
                position,
                heads,
                capacity,
                self.window(),
                self.scale,
                form,
            );
        }
    }

    /// Tokens, first row, first position, KV heads and capacity.
    fn sizes(&self) -> [u32; 5] {
        let (problem, shape) = (self.problem, self.problem.cache);
        // Each was checked against a length that fits 32 bits.
        [problem.tokens, self.first_row, problem.first_position, shape.kv_heads, shape.capacity]
            .map(|n| n as u32)
    }

    fn prefill<E: Float>(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: prefill::Form,
        out: &Buffer<f32>,
    ) {
        let (q, k, v, out) =
            (self.q.vectors(4), self.cache.k.vectors(4), self.cache.v.vectors(4), out.vectors(4));
        let [tokens, first, position, heads, capacity] = self.sizes();
        // SAFETY: as in `decode_as`; tokens past the last are clamped and not stored.
        unsafe {
            prefill::prefill::launch_unchecked::<E>(
                client,
                cubes,
                units,
                q,
                k,
                v,
                out,
                tokens,
                first,
                position,
                heads,
                capacity,
                self.window(),
                self.scale,
                form,
            );
        }
    }
}

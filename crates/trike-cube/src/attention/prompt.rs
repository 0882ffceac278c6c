//! Launches of the kernels for many query rows.

use cubecl::client::Client;
use cubecl::prelude::{ComptimeOptionArgs, CubeCount, CubeDim, Float};

use super::walk::{Mask, MaskLaunch};
use super::{Call, mma, prefill};
use crate::device::Buffer;

impl Call<'_> {
    pub(super) fn mma(
        &self,
        client: &Client,
        cubes: CubeCount,
        units: CubeDim,
        form: mma::Form,
        out: &Buffer<f32>,
    ) {
        let (q, k, v, out) =
            (self.q.vectors(2), self.cache.k.vectors(8), self.cache.v.vectors(8), out.vectors(2));
        let [tokens, first, position, heads, capacity] = self.sizes();
        // SAFETY: as in `decode_as`; tokens past the last are clamped and not stored, and the mask has the rows of all
        // positions (`BlockBitmap::check`).
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
                self.mask_arg(),
                form,
            );
        }
    }

    pub(super) fn prefill<E: Float>(
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
        // SAFETY: as for `mma`.
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
                self.mask_arg(),
                form,
            );
        }
    }

    /// Tokens, first row, first position, KV heads and capacity.
    fn sizes(&self) -> [u32; 5] {
        let (problem, shape) = (&self.problem, self.problem.cache);
        // Each was checked against a length that fits 32 bits.
        [problem.tokens, self.first_row, problem.first_position, shape.kv_heads, shape.capacity]
            .map(|n| n as u32)
    }

    fn mask_arg(&self) -> ComptimeOptionArgs<Mask> {
        let Some(mask) = self.mask else { return ComptimeOptionArgs::None };
        let bitmap = mask.bitmap();
        // A mask has fewer than 2^32 words.
        let sizes = [bitmap.query_blocks().start, bitmap.row_words(), bitmap.head_words()];
        let [first_block, words, head_words] = sizes.map(|n| n as u32);
        ComptimeOptionArgs::Some(MaskLaunch::new(mask.buffer().arg(), first_block, words, head_words))
    }
}

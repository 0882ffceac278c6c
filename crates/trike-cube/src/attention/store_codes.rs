//! Storing keys and values in int8 caches.

use cubecl::client::Client;
use cubecl::prelude::*;

use super::cache::{CacheSegment, CacheShape, CubeKvCache};
use super::codes::{KvCodesForm, UNITS};
use super::several::TokenBatch;
use crate::device::{Buffer, Launch};
use crate::plan::{Settings, spread};

mod kernel {
    use super::super::codes::{Place, round_and_store};
    use super::*;

    /// Group `i` of units quantizes and stores key and value `i`, counted over the rows and KV heads of a segment.
    #[cube(launch_unchecked)]
    pub(super) fn store_codes(
        k: &[f32],
        v: &[f32],
        positions: &[u32],
        keys: &mut [u32],
        values: &mut [u32],
        scales: &mut [f32],
        count: u32,
        first_row: u32,
        kv_heads: u32,
        capacity: u32,
        #[comptime] form: KvCodesForm,
    ) {
        let group = (CUBE_POS * UNITS + UNIT_POS as usize) / comptime!(form.lanes());
        let i = clamp_max(group, count as usize - 1);
        let (row, head) = (first_row as usize + i / kv_heads as usize, i % kv_heads as usize);
        let slot = head * capacity as usize + (positions[row] % capacity) as usize;
        let from = (row * kv_heads as usize + head) * form.head_dim;
        let place = Place { from, slot, turns_at: 0usize.runtime(), rotated: 0usize.runtime() };
        // Without rotation the turns are not read, so any buffer will do.
        round_and_store(k, v, k, keys, values, scales, &place, group == i, form);
    }

    /// As [`store_codes`], for the rows and caches of a [table](super::super::TokenTable).
    #[cube(launch_unchecked)]
    pub(super) fn store_codes_several(
        k: &[f32],
        v: &[f32],
        table: &[u32],
        keys: &mut [u32],
        values: &mut [u32],
        scales: &mut [f32],
        count: u32,
        kv_heads: u32,
        capacity: u32,
        #[comptime] form: KvCodesForm,
    ) {
        let group = (CUBE_POS * UNITS + UNIT_POS as usize) / comptime!(form.lanes());
        let i = clamp_max(group, count as usize - 1);
        let (at, head) = (3 * (i / kv_heads as usize), i % kv_heads as usize);
        let (row, first_slot) = (table[at] as usize, table[at + 1] as usize / form.head_dim);
        let slot = first_slot + head * capacity as usize + (table[at + 2] % capacity) as usize;
        let from = (row * kv_heads as usize + head) * form.head_dim;
        let place = Place { from, slot, turns_at: 0usize.runtime(), rotated: 0usize.runtime() };
        round_and_store(k, v, k, keys, values, scales, &place, group == i, form);
    }
}

pub(super) fn form_of(shape: CacheShape) -> KvCodesForm {
    KvCodesForm { head_dim: shape.head_dim, pairing: None }
}

/// The launch that stores `rows` rows.
pub(super) fn launch_of(kernel: &'static str, shape: CacheShape, rows: usize) -> Launch {
    let form = form_of(shape);
    let cubes = spread((rows * shape.kv_heads).div_ceil(UNITS / form.lanes()));
    let settings = Settings { cubes, ..Settings::linear(1, UNITS as u32, 6) };
    Launch::new(kernel, &form, settings.shared(KvCodesForm::shared_bytes()))
}

pub(super) fn store_several(
    client: &Client,
    cubes: CubeCount,
    units: CubeDim,
    (k, v): (&Buffer<f32>, &Buffer<f32>),
    batch: &TokenBatch<'_>,
    cache: &CubeKvCache,
    scales: &Buffer<f32>,
) {
    let shape = cache.shape();
    let (keys, values) = (cache.k.all().vectors(4), cache.v.all().vectors(4));
    // Each was checked against a length that fits 32 bits.
    let [count, heads, capacity] =
        [batch.len() * shape.kv_heads, shape.kv_heads, shape.capacity].map(|n| n as u32);
    // SAFETY: `TokenBatch::check_new` checked the lengths, that the rows exist and that the caches are at the offsets of the table;
    // a slot is below the capacity, no two rows share a cache, and groups past the last store nothing.
    unsafe {
        kernel::store_codes_several::launch_unchecked(
            client,
            cubes,
            units,
            k.arg(),
            v.arg(),
            batch.tokens.table().arg(),
            keys,
            values,
            scales.all().arg(),
            count,
            heads,
            capacity,
            form_of(shape),
        );
    }
}

pub(super) fn store(
    client: &Client,
    cubes: CubeCount,
    units: CubeDim,
    (k, v): (&Buffer<f32>, &Buffer<f32>),
    segment: &CacheSegment<'_>,
    scales: &Buffer<f32>,
) {
    let (cache, rows) = (segment.cache, &segment.rows);
    let shape = cache.shape();
    let (keys, values) = (cache.k.vectors(4), cache.v.vectors(4));
    let sizes = [rows.len() * shape.kv_heads, rows.start, shape.kv_heads, shape.capacity];
    // Each was checked against a length that fits 32 bits.
    let [count, first, heads, capacity] = sizes.map(|n| n as u32);
    // SAFETY: `CubeDevice::store` checked the lengths, rows are within `positions`, a slot is below the capacity, no two rows share
    // a slot because the positions are consecutive and at most `capacity` in number, and groups past the last store nothing.
    unsafe {
        kernel::store_codes::launch_unchecked(
            client,
            cubes,
            units,
            k.arg(),
            v.arg(),
            segment.positions.buffer().arg(),
            keys,
            values,
            scales.arg(),
            count,
            first,
            heads,
            capacity,
            form_of(shape),
        );
    }
}

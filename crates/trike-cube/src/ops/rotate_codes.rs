//! Rotation of queries and keys, and storing of keys and values in int8 caches, in one launch.

use cubecl::client::Client;
use cubecl::prelude::*;
use trike_core::RopePairing;

use super::rope::CubeRopeTable;
use crate::attention::codes::{KvCodesForm, UNITS};
use crate::attention::{CacheSegment, CubeKvCache, TokenBatch};
use crate::device::{Buffer, Launch};
use crate::plan::{Settings, spread};

mod kernel {
    use super::super::turns::turn_query;
    use super::*;
    use crate::attention::codes::{Place, round_and_store};

    /// The work of a group of units: pairs of a row's queries, or a key and a value.
    #[derive(CubeType, Clone, Copy)]
    struct Part {
        /// Number of the row.
        row: usize,
        /// Index of the group within the row.
        of_row: usize,
        /// Groups of the row for queries; each further group has a key and a value.
        for_queries: usize,
        /// Whether the group has work.
        exists: bool,
    }

    #[cube]
    fn part_of(rows: u32, heads: usize, kv_heads: usize, #[comptime] form: KvCodesForm) -> Part {
        let group = (CUBE_POS * UNITS + UNIT_POS as usize) / comptime!(form.lanes());
        let pairs = heads * comptime!(form.head_dim / 2);
        let for_queries = pairs.div_ceil(comptime!(form.lanes()));
        let per_row = for_queries + kv_heads;
        let (row, of_row) = (group / per_row, group % per_row);
        let exists = row < rows as usize;
        Part { row: clamp_max(row, rows as usize - 1), of_row, for_queries, exists }
    }

    /// Does the work of the group, for a row at `position` whose cache starts at slot `first_slot`.
    #[cube]
    fn take(
        q: &mut [f32],
        k: &[f32],
        v: &[f32],
        turns: &[f32],
        keys: &mut [u32],
        values: &mut [u32],
        scales: &mut [f32],
        part: &Part,
        row: usize,
        position: u32,
        first_slot: usize,
        heads: usize,
        kv_heads: usize,
        rotated: usize,
        capacity: u32,
        #[comptime] form: KvCodesForm,
    ) {
        let stores = part.of_row >= part.for_queries;
        let head = select(stores, part.of_row - part.for_queries, 0usize);
        let place = Place {
            from: (row * kv_heads + head) * form.head_dim,
            slot: first_slot + head * capacity as usize + (position % capacity) as usize,
            turns_at: position as usize * rotated,
            rotated,
        };
        round_and_store(k, v, turns, keys, values, scales, &place, part.exists && stores, form);
        if part.exists && !stores {
            let half = comptime!(form.head_dim / 2);
            let i = part.of_row * comptime!(form.lanes()) + UNIT_POS as usize % comptime!(form.lanes());
            if i < heads * half {
                let from = (row * heads + i / half) * form.head_dim;
                let pairing = comptime!(form.pairing.unwrap_or(RopePairing::Halves));
                turn_query(q, turns, from, i % half, position as usize * rotated, rotated, pairing);
            }
        }
    }

    /// Rotates the queries of `rows` rows from `first_row` on, and stores their rotated keys and their values.
    #[cube(launch_unchecked)]
    pub(super) fn rotate_and_store_codes(
        q: &mut [f32],
        k: &[f32],
        v: &[f32],
        positions: &[u32],
        turns: &[f32],
        keys: &mut [u32],
        values: &mut [u32],
        scales: &mut [f32],
        rows: u32,
        first_row: u32,
        heads: u32,
        kv_heads: u32,
        rotated: u32,
        capacity: u32,
        #[comptime] form: KvCodesForm,
    ) {
        let (heads, kv_heads, rotated) = (heads as usize, kv_heads as usize, rotated as usize);
        let part = part_of(rows, heads, kv_heads, form);
        let row = first_row as usize + part.row;
        let position = positions[row];
        take(
            q, k, v, turns, keys, values, scales, &part, row, position, 0usize, heads, kv_heads, rotated,
            capacity, form,
        );
    }

    /// As [`rotate_and_store_codes`], for the rows and caches of a [table](crate::attention::TokenTable).
    #[cube(launch_unchecked)]
    pub(super) fn rotate_and_store_codes_several(
        q: &mut [f32],
        k: &[f32],
        v: &[f32],
        table: &[u32],
        turns: &[f32],
        keys: &mut [u32],
        values: &mut [u32],
        scales: &mut [f32],
        rows: u32,
        heads: u32,
        kv_heads: u32,
        rotated: u32,
        capacity: u32,
        #[comptime] form: KvCodesForm,
    ) {
        let (heads, kv_heads, rotated) = (heads as usize, kv_heads as usize, rotated as usize);
        let part = part_of(rows, heads, kv_heads, form);
        let at = 3 * part.row;
        let (row, position) = (table[at] as usize, table[at + 2]);
        let first_slot = table[at + 1] as usize / form.head_dim;
        take(
            q, k, v, turns, keys, values, scales, &part, row, position, first_slot, heads, kv_heads, rotated,
            capacity, form,
        );
    }
}

fn form_of(cache: &CubeKvCache, table: &CubeRopeTable) -> KvCodesForm {
    KvCodesForm { head_dim: cache.shape().head_dim, pairing: Some(table.pairing()) }
}

/// The launch for some rows.
pub(super) fn launch_of(
    kernel: &'static str,
    cache: &CubeKvCache,
    heads: usize,
    rows: usize,
    table: &CubeRopeTable,
) -> Launch {
    let (form, shape) = (form_of(cache, table), cache.shape());
    let of_row = (heads * (shape.head_dim / 2)).div_ceil(form.lanes()) + shape.kv_heads;
    let cubes = spread((rows * of_row).div_ceil(UNITS / form.lanes()));
    let settings = Settings { cubes, ..Settings::linear(1, UNITS as u32, 8) };
    Launch::new(kernel, &form, settings.shared(KvCodesForm::shared_bytes()))
}

pub(super) fn launch_several(
    client: &Client,
    cubes: CubeCount,
    units: CubeDim,
    [q, k, v]: [&Buffer<f32>; 3],
    batch: &TokenBatch<'_>,
    table: &CubeRopeTable,
    (heads, scales): (u32, &Buffer<f32>),
) {
    let cache = batch.caches[0];
    let shape = cache.shape();
    // Each was checked against a length that fits 32 bits.
    let [rows, kv_heads, rotated, capacity] =
        [batch.len(), shape.kv_heads, table.rotated(), shape.capacity].map(|n| n as u32);
    let (keys, values) = (cache.k.all().vectors(4), cache.v.all().vectors(4));
    // SAFETY: `CubeDevice::rotate_and_store_tokens` checked the lengths, that rows are within them, that positions are within the
    // table and that caches are at the offsets of the tokens; a slot is below the capacity, no two rows share a cache, and groups
    // past the last do nothing.
    unsafe {
        kernel::rotate_and_store_codes_several::launch_unchecked(
            client,
            cubes,
            units,
            q.arg(),
            k.arg(),
            v.arg(),
            batch.tokens.table().arg(),
            table.turns().arg(),
            keys,
            values,
            scales.all().arg(),
            rows,
            heads,
            kv_heads,
            rotated,
            capacity,
            form_of(cache, table),
        );
    }
}

pub(super) fn launch(
    client: &Client,
    cubes: CubeCount,
    units: CubeDim,
    [q, k, v]: [&Buffer<f32>; 3],
    segment: &CacheSegment<'_>,
    table: &CubeRopeTable,
    (heads, scales): (u32, &Buffer<f32>),
) {
    let (cache, of_rows) = (segment.cache, &segment.rows);
    let shape = cache.shape();
    // Each was checked against a length that fits 32 bits.
    let [rows, first, kv_heads, rotated, capacity] =
        [of_rows.len(), of_rows.start, shape.kv_heads, table.rotated(), shape.capacity].map(|n| n as u32);
    let (keys, values) = (cache.k.vectors(4), cache.v.vectors(4));
    // SAFETY: `CubeDevice::rotate_and_store` checked the lengths, rows are within `positions`, positions within the table
    // (`Positions::write` checks later ones of recorded launches), a slot is below the capacity, no two rows share a slot because
    // the positions are consecutive and at most `capacity` in number, and groups past the last do nothing.
    unsafe {
        kernel::rotate_and_store_codes::launch_unchecked(
            client,
            cubes,
            units,
            q.arg(),
            k.arg(),
            v.arg(),
            segment.positions.buffer().arg(),
            table.turns().arg(),
            keys,
            values,
            scales.arg(),
            rows,
            first,
            heads,
            kv_heads,
            rotated,
            capacity,
            form_of(cache, table),
        );
    }
}

//! Rotation of queries and keys, and storing of keys and values, in one launch.

use cubecl::client::Client;
use cubecl::prelude::*;
use half::f16;
use trike_core::RopePairing;

use super::rope::CubeRopeTable;
use super::rotate_codes;
use crate::attention::{CacheSegment, CubeKvCache, KvBuffer, TokenBatch};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_range};
use crate::plan::{Settings, spread};

/// Units per cube.
const UNITS: u32 = 128;

mod kernel {
    use super::super::turns::{places, turn_query};
    use super::*;

    /// Processes pair `i` of a row, counted over its query and key heads. Queries are rotated in place; keys are rotated and stored
    /// with their values in the cache that starts at element `place`.
    #[cube]
    fn take_pair<E: Float>(
        q: &mut [f32],
        k: &[f32],
        v: &[f32],
        turns: &[f32],
        keys: &mut [E],
        values: &mut [E],
        i: usize,
        row: usize,
        position: u32,
        place: usize,
        heads: usize,
        kv_heads: usize,
        head_dim: u32,
        rotated: usize,
        capacity: u32,
        #[comptime] pairing: RopePairing,
    ) {
        let (dim, half) = (head_dim as usize, head_dim as usize / 2);
        let (pair, head) = (i % half, i / half);
        let (low, high) = places(pair, rotated, pairing);
        let turns_at = position as usize * rotated;
        if head < heads {
            let from = (row * heads + head) * dim;
            turn_query(q, turns, from, pair, turns_at, rotated, pairing);
        } else {
            let head = head - heads;
            let from = (row * kv_heads + head) * dim;
            let to = place + (head * capacity as usize + (position % capacity) as usize) * dim;
            let (a, b) = (k[from + low], k[from + high]);
            let mut first = a;
            let mut second = b;
            if pair < rotated / 2 {
                let (cos, sin) = (turns[turns_at + pair], turns[turns_at + pair + rotated / 2]);
                first = a * cos - b * sin;
                second = a * sin + b * cos;
            }
            keys[to + low] = E::cast_from(first);
            keys[to + high] = E::cast_from(second);
            values[to + low] = E::cast_from(v[from + low]);
            values[to + high] = E::cast_from(v[from + high]);
        }
    }

    /// Unit `i` processes pair `i` of all rows.
    #[cube(launch_unchecked)]
    pub(super) fn rotate_and_store<E: Float>(
        q: &mut [f32],
        k: &[f32],
        v: &[f32],
        positions: &[u32],
        turns: &[f32],
        keys: &mut [E],
        values: &mut [E],
        count: u32,
        first_row: u32,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        rotated: u32,
        capacity: u32,
        #[comptime] pairing: RopePairing,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < count as usize {
            let (heads, kv_heads, rotated) = (heads as usize, kv_heads as usize, rotated as usize);
            let each = (heads + kv_heads) * (head_dim as usize / 2);
            let row = first_row as usize + i / each;
            let position = positions[row];
            take_pair::<E>(
                q,
                k,
                v,
                turns,
                keys,
                values,
                i % each,
                row,
                position,
                0usize,
                heads,
                kv_heads,
                head_dim,
                rotated,
                capacity,
                pairing,
            );
        }
    }

    /// As [`rotate_and_store`], for the rows and caches of a [table](crate::attention::TokenTable).
    #[cube(launch_unchecked)]
    pub(super) fn rotate_and_store_several<E: Float>(
        q: &mut [f32],
        k: &[f32],
        v: &[f32],
        table: &[u32],
        turns: &[f32],
        keys: &mut [E],
        values: &mut [E],
        count: u32,
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        rotated: u32,
        capacity: u32,
        #[comptime] pairing: RopePairing,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < count as usize {
            let (heads, kv_heads, rotated) = (heads as usize, kv_heads as usize, rotated as usize);
            let each = (heads + kv_heads) * (head_dim as usize / 2);
            let at = 3 * (i / each);
            let (row, place) = (table[at] as usize, table[at + 1] as usize);
            let position = table[at + 2];
            take_pair::<E>(
                q,
                k,
                v,
                turns,
                keys,
                values,
                i % each,
                row,
                position,
                place,
                heads,
                kv_heads,
                head_dim,
                rotated,
                capacity,
                pairing,
            );
        }
    }
}

impl CubeDevice {
    /// Rotates the queries of a segment in place, and stores its rotated keys and its values in its cache: [`CubeDevice::rope`] for
    /// both and [`CubeDevice::store`], in one launch. `q` has the shape `positions x heads x head_dim`; `k` and `v` have
    /// `positions x kv_heads x head_dim` and are not changed. Rows of other segments are unchanged.
    ///
    /// # Errors
    ///
    /// Errors of [`CubeDevice::rope`] and [`CubeDevice::store`]; [`CubeError::NotMultiple`] for an odd `head_dim`.
    pub fn rotate_and_store(
        &self,
        q: &Buffer<f32>,
        k: &Buffer<f32>,
        v: &Buffer<f32>,
        segment: &CacheSegment<'_>,
        table: &CubeRopeTable,
    ) -> Result<()> {
        let CacheSegment { rows, positions, cache } = segment;
        segment.check_new(k, v, self.is_capturing())?;
        let heads = heads_of([q, k, v], cache, positions.values().len(), table)?;
        if cache.overlaps(q) {
            return Err(CubeError::Overlap { what: "queries, and keys, values or the cache" });
        }
        let last = positions.values()[rows.clone()].iter().copied().max().unwrap_or(0);
        check_range("position of rope", 0, table.positions() - 1, last as usize)?;
        if self.is_capturing() {
            positions.keep_below(table.positions());
        }
        let (count, launch) = match cache.k {
            KvBuffer::F32(_) | KvBuffer::F16(_) => {
                launch_of("rotate_and_store", cache, heads, rows.len(), table)
            }
            KvBuffer::Int8(_) => {
                (0, rotate_codes::launch_of("rotate_and_store_codes", cache, heads, rows.len(), table))
            }
        };
        let mut written = cache.written();
        written.push(q);
        self.launch(&launch, &written, |client, cubes, units| {
            // Each was checked against a length that fits 32 bits.
            let sizes = [count, rows.start, heads].map(|n| n as u32);
            match &cache.k {
                KvBuffer::F32(_) => launch_as::<f32>(client, cubes, units, [q, k, v], segment, table, sizes),
                KvBuffer::F16(_) => launch_as::<f16>(client, cubes, units, [q, k, v], segment, table, sizes),
                KvBuffer::Int8(codes) => {
                    let with = (sizes[2], &codes.scales);
                    rotate_codes::launch(client, cubes, units, [q, k, v], segment, table, with);
                }
            }
        })
    }

    /// As [`CubeDevice::rotate_and_store`], for single tokens of several sequences.
    ///
    /// # Errors
    ///
    /// Errors of [`CubeDevice::rotate_and_store`], and [`CubeError::Apart`].
    pub fn rotate_and_store_tokens(
        &self,
        q: &Buffer<f32>,
        k: &Buffer<f32>,
        v: &Buffer<f32>,
        batch: &TokenBatch<'_>,
        table: &CubeRopeTable,
    ) -> Result<()> {
        let cache = batch.check_new(k, v)?;
        let shape = cache.shape();
        let heads = heads_of([q, k, v], cache, k.len() / (shape.kv_heads * shape.head_dim), table)?;
        if batch.caches.iter().any(|cache| cache.overlaps(q)) {
            return Err(CubeError::Overlap { what: "queries, and keys, values or the cache" });
        }
        check_range("position of rope", 0, table.positions() - 1, batch.last())?;
        if self.is_capturing() {
            batch.keep_within(cache, table.positions());
        }
        let (count, launch) = match cache.k {
            KvBuffer::F32(_) | KvBuffer::F16(_) => {
                launch_of("rotate_and_store_tokens", cache, heads, batch.len(), table)
            }
            KvBuffer::Int8(_) => {
                let kernel = "rotate_and_store_codes_tokens";
                (0, rotate_codes::launch_of(kernel, cache, heads, batch.len(), table))
            }
        };
        let mut written = cache.written();
        written.push(q);
        self.launch(&launch, &written, |client, cubes, units| {
            // Each was checked against a length that fits 32 bits.
            let sizes = [count, heads].map(|n| n as u32);
            match &cache.k {
                KvBuffer::F32(_) => {
                    launch_several::<f32>(client, cubes, units, [q, k, v], batch, table, sizes);
                }
                KvBuffer::F16(_) => {
                    launch_several::<f16>(client, cubes, units, [q, k, v], batch, table, sizes);
                }
                KvBuffer::Int8(codes) => {
                    let with = (sizes[1], &codes.scales);
                    rotate_codes::launch_several(client, cubes, units, [q, k, v], batch, table, with);
                }
            }
        })
    }
}

/// Number of query heads of a batch of `rows` rows whose keys and values were checked.
fn heads_of(
    [q, k, v]: [&Buffer<f32>; 3],
    cache: &CubeKvCache,
    rows: usize,
    table: &CubeRopeTable,
) -> Result<usize> {
    let shape = cache.shape();
    let unit = rows.saturating_mul(shape.head_dim).max(1);
    if q.len() == 0 || !q.len().is_multiple_of(unit) {
        return Err(CubeError::NotMultiple { what: "queries to rotate", unit, got: q.len() });
    }
    if !shape.head_dim.is_multiple_of(2) {
        return Err(CubeError::NotMultiple { what: "head_dim of rope", unit: 2, got: shape.head_dim });
    }
    check_range("head_dim of rope", table.rotated(), 1 << 16, shape.head_dim)?;
    if q.overlaps(k) || q.overlaps(v) {
        return Err(CubeError::Overlap { what: "queries, and keys, values or the cache" });
    }
    Ok(q.len() / unit)
}

/// The number of pairs of some rows, and the launch that processes them.
fn launch_of(
    kernel: &'static str,
    cache: &CubeKvCache,
    heads: usize,
    rows: usize,
    table: &CubeRopeTable,
) -> (usize, Launch) {
    let shape = cache.shape();
    // Half of the elements of queries and keys, of which there are fewer than 2^32 each.
    let count = rows * (heads + shape.kv_heads) * (shape.head_dim / 2);
    let cubes = spread(count.div_ceil(UNITS as usize));
    let settings = Settings { cubes, ..Settings::linear(1, UNITS, 7) };
    (count, Launch::new(kernel, &(shape.precision, table.pairing()), settings))
}

/// Key heads, head dimension, rotated elements and capacity.
fn sizes_of(cache: &CubeKvCache, table: &CubeRopeTable) -> [u32; 4] {
    let shape = cache.shape();
    // Each was checked against a length that fits 32 bits.
    [shape.kv_heads, shape.head_dim, table.rotated(), shape.capacity].map(|n| n as u32)
}

fn launch_several<E: Float>(
    client: &Client,
    cubes: CubeCount,
    units: CubeDim,
    [q, k, v]: [&Buffer<f32>; 3],
    batch: &TokenBatch<'_>,
    table: &CubeRopeTable,
    [count, heads]: [u32; 2],
) {
    let cache = batch.caches[0];
    let [kv_heads, dim, rotated, capacity] = sizes_of(cache, table);
    let (keys, values) = (cache.k.all().vectors(1), cache.v.all().vectors(1));
    let (places, turns) = (batch.tokens.table().arg(), table.turns().arg());
    // SAFETY: `CubeDevice::rotate_and_store_tokens` checked the lengths, that rows are within them, that positions are within the
    // table and that caches are at the offsets of the tokens; a slot is below the capacity, and no two rows share a cache.
    unsafe {
        kernel::rotate_and_store_several::launch_unchecked::<E>(
            client,
            cubes,
            units,
            q.arg(),
            k.arg(),
            v.arg(),
            places,
            turns,
            keys,
            values,
            count,
            heads,
            kv_heads,
            dim,
            rotated,
            capacity,
            table.pairing(),
        );
    }
}

fn launch_as<E: Float>(
    client: &Client,
    cubes: CubeCount,
    units: CubeDim,
    [q, k, v]: [&Buffer<f32>; 3],
    segment: &CacheSegment<'_>,
    table: &CubeRopeTable,
    [count, first, heads]: [u32; 3],
) {
    let [kv_heads, dim, rotated, capacity] = sizes_of(segment.cache, table);
    let (keys, values) = (segment.cache.k.vectors(1), segment.cache.v.vectors(1));
    let (positions, turns) = (segment.positions.buffer().arg(), table.turns().arg());
    // SAFETY: `CubeDevice::rotate_and_store` checked the lengths, rows are within `positions`, positions within the table
    // (`Positions::write` checks later ones of recorded launches), a slot is below the capacity, and no two rows share a slot
    // because the positions are consecutive and at most `capacity` in number.
    unsafe {
        kernel::rotate_and_store::launch_unchecked::<E>(
            client,
            cubes,
            units,
            q.arg(),
            k.arg(),
            v.arg(),
            positions,
            turns,
            keys,
            values,
            count,
            first,
            heads,
            kv_heads,
            dim,
            rotated,
            capacity,
            table.pairing(),
        );
    }
}

//! Storing keys and values in caches.

use cubecl::client::Client;
use cubecl::prelude::*;
use half::f16;

use super::cache::{CacheSegment, CacheShape, CubeKvCache, KvBuffer};
use super::positions::MAX_POSITION;
use super::several::TokenBatch;
use super::store_codes;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::Result;
use crate::plan::{Settings, spread};

mod kernel {
    use super::*;

    /// Stores vector `i` of a row's keys and values in the cache that starts at vector `place`.
    #[cube]
    fn store_vector<E: Float, N: Size>(
        k: &[Vector<f32, N>],
        v: &[Vector<f32, N>],
        keys: &mut [Vector<E, N>],
        values: &mut [Vector<E, N>],
        i: usize,
        row: usize,
        place: usize,
        slot: u32,
        kv_heads: u32,
        dim: u32,
        capacity: u32,
    ) {
        let (head, d) = (i / dim as usize, i % dim as usize);
        let from = row * (kv_heads * dim) as usize + i;
        let to = place + (head * capacity as usize + slot as usize) * dim as usize + d;
        keys[to] = Vector::cast_from(k[from]);
        values[to] = Vector::cast_from(v[from]);
    }

    /// Unit `i` stores vector `i` of the new keys and of the new values.
    #[cube(launch_unchecked)]
    pub(super) fn store<E: Float, N: Size>(
        k: &[Vector<f32, N>],
        v: &[Vector<f32, N>],
        positions: &[u32],
        keys: &mut [Vector<E, N>],
        values: &mut [Vector<E, N>],
        count: u32,
        first_row: u32,
        kv_heads: u32,
        dim: u32,
        capacity: u32,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < count as usize {
            let width = (kv_heads * dim) as usize;
            let row = first_row as usize + i / width;
            let slot = positions[row] % capacity;
            store_vector::<E, N>(k, v, keys, values, i % width, row, 0usize, slot, kv_heads, dim, capacity);
        }
    }

    /// As [`store`], for the rows and caches of a [table](super::super::TokenTable).
    #[cube(launch_unchecked)]
    pub(super) fn store_several<E: Float, N: Size>(
        k: &[Vector<f32, N>],
        v: &[Vector<f32, N>],
        table: &[u32],
        keys: &mut [Vector<E, N>],
        values: &mut [Vector<E, N>],
        count: u32,
        kv_heads: u32,
        dim: u32,
        capacity: u32,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < count as usize {
            let width = (kv_heads * dim) as usize;
            let row = table[3 * (i / width)] as usize;
            let place = table[3 * (i / width) + 1] as usize / N::value();
            let slot = table[3 * (i / width) + 2] % capacity;
            store_vector::<E, N>(k, v, keys, values, i % width, row, place, slot, kv_heads, dim, capacity);
        }
    }
}

/// Units per cube of the store kernel.
const UNITS: u32 = 128;

impl CubeDevice {
    /// Stores the keys and values of a segment in its cache, each at its position. `k` and `v` have the shape
    /// `positions x kv_heads x head_dim`.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`](crate::CubeError::Length) for keys or values of the wrong length,
    /// [`CubeError::Range`](crate::CubeError::Range) for rows that do not exist or exceed the cache capacity,
    /// [`CubeError::Mismatch`](crate::CubeError::Mismatch) for positions that are not consecutive,
    /// [`CubeError::Overlap`](crate::CubeError::Overlap), and errors of the launch.
    pub fn store(&self, k: &Buffer<f32>, v: &Buffer<f32>, segment: &CacheSegment<'_>) -> Result<()> {
        segment.check_new(k, v, self.is_capturing())?;
        let CacheSegment { rows, cache, .. } = segment;
        let launch = match cache.k {
            KvBuffer::F32(_) | KvBuffer::F16(_) => launch_of_store("store", cache.shape(), rows.len()),
            KvBuffer::Int8(_) => store_codes::launch_of("store_codes", cache.shape(), rows.len()),
        };
        self.launch(&launch, &cache.written(), |client, cubes, units| match &cache.k {
            KvBuffer::F32(_) => store::<f32>(client, cubes, units, (k, v), segment),
            KvBuffer::F16(_) => store::<f16>(client, cubes, units, (k, v), segment),
            KvBuffer::Int8(codes) => {
                store_codes::store(client, cubes, units, (k, v), segment, &codes.scales);
            }
        })
    }

    /// As [`CubeDevice::store`], for single tokens of several sequences.
    ///
    /// # Errors
    ///
    /// Errors of [`CubeDevice::store`] and [`CubeError::Apart`](crate::CubeError::Apart).
    pub fn store_tokens(&self, k: &Buffer<f32>, v: &Buffer<f32>, batch: &TokenBatch<'_>) -> Result<()> {
        let cache = batch.check_new(k, v)?;
        if self.is_capturing() {
            batch.keep_within(cache, MAX_POSITION);
        }
        let launch = match cache.k {
            KvBuffer::F32(_) | KvBuffer::F16(_) => {
                launch_of_store("store_tokens", cache.shape(), batch.len())
            }
            KvBuffer::Int8(_) => store_codes::launch_of("store_codes_tokens", cache.shape(), batch.len()),
        };
        self.launch(&launch, &cache.written(), |client, cubes, units| match &cache.k {
            KvBuffer::F32(_) => store_several::<f32>(client, cubes, units, (k, v), batch, cache),
            KvBuffer::F16(_) => store_several::<f16>(client, cubes, units, (k, v), batch, cache),
            KvBuffer::Int8(codes) => {
                store_codes::store_several(client, cubes, units, (k, v), batch, cache, &codes.scales);
            }
        })
    }
}

fn launch_of_store(kernel: &'static str, shape: CacheShape, rows: usize) -> Launch {
    let count = rows * shape.kv_heads * shape.head_dim / shape.lanes();
    let cubes = spread(count.div_ceil(UNITS as usize));
    let settings = Settings { cubes, ..Settings::linear(1, UNITS, 5) };
    Launch::new(kernel, &(shape.precision, shape.lanes()), settings)
}

fn store_several<E: Float>(
    client: &Client,
    cubes: CubeCount,
    units: CubeDim,
    (k, v): (&Buffer<f32>, &Buffer<f32>),
    batch: &TokenBatch<'_>,
    cache: &CubeKvCache,
) {
    let shape = cache.shape();
    let lanes = shape.lanes();
    let (k, v, table) = (k.vectors(lanes), v.vectors(lanes), batch.tokens.table().arg());
    let (keys, values) = (cache.k.all().vectors(lanes), cache.v.all().vectors(lanes));
    let dim = shape.head_dim / lanes;
    let sizes = [batch.len() * shape.kv_heads * dim, shape.kv_heads, dim, shape.capacity];
    // Each was checked against a length that fits 32 bits.
    let [count, heads, dim, capacity] = sizes.map(|n| n as u32);
    // SAFETY: `TokenBatch::check_new` checked the lengths, that the rows exist and that the caches are at the offsets of the table;
    // a slot is below the capacity, and no two rows share a cache.
    unsafe {
        kernel::store_several::launch_unchecked::<E>(
            client, cubes, units, lanes, k, v, table, keys, values, count, heads, dim, capacity,
        );
    }
}

fn store<E: Float>(
    client: &Client,
    cubes: CubeCount,
    units: CubeDim,
    (k, v): (&Buffer<f32>, &Buffer<f32>),
    segment: &CacheSegment<'_>,
) {
    let (shape, rows) = (segment.cache.shape(), &segment.rows);
    let lanes = shape.lanes();
    let (k, v, positions) = (k.vectors(lanes), v.vectors(lanes), segment.positions.buffer().arg());
    let (keys, values) = (segment.cache.k.vectors(lanes), segment.cache.v.vectors(lanes));
    let dim = shape.head_dim / lanes;
    let sizes = [rows.len() * shape.kv_heads * dim, rows.start, shape.kv_heads, dim, shape.capacity];
    // Each was checked against a length that fits 32 bits.
    let [count, first, heads, dim, capacity] = sizes.map(|n| n as u32);
    // SAFETY: `CubeDevice::store` checked the lengths, rows are within `positions`, a slot is below the capacity, and no two rows
    // share a slot because the positions are consecutive and at most `capacity` in number.
    unsafe {
        kernel::store::launch_unchecked::<E>(
            client, cubes, units, lanes, k, v, positions, keys, values, count, first, heads, dim, capacity,
        );
    }
}

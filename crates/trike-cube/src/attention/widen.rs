//! Prefill attention over int8 caches: widens the visible keys and values to a type that the prefill kernels read.
//!
//! Each tile of rows reads the cache once and would unpack its codes again; widening them once is less work.

use cubecl::prelude::*;
use half::f16;

use super::Call;
use super::cache::{CacheShape, Codes, CubeKvCache, KvBuffer};
use crate::device::{CubeDevice, Launch};
use crate::error::Result;
use crate::plan::{Settings, spread};

mod kernel {
    use super::super::codes::{OF_WORD, code_at};
    use super::*;

    /// Unit `i` widens word `i` of the keys and of the values, counted over the KV heads and the positions from `first` on.
    #[cube(launch_unchecked)]
    pub(super) fn widen<E: Float>(
        k: &[u32],
        v: &[u32],
        scales: &[Vector<f32, Const<2>>],
        keys: &mut [Vector<E, Const<4>>],
        values: &mut [Vector<E, Const<4>>],
        count: u32,
        first: u32,
        positions: u32,
        capacity: u32,
        #[comptime] words: usize,
        #[comptime] ptx: bool,
    ) {
        let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
        if i < count as usize {
            let (at, word) = (i / words, i % words);
            let head = at / positions as usize;
            let position = first + (at % positions as usize) as u32;
            let from = head * capacity as usize + (position % capacity) as usize;
            let to = head * positions as usize + (position % positions) as usize;
            let (key, value, pair) = (k[from * words + word], v[from * words + word], scales[from]);
            let mut wide_key = Vector::<f32, Const<4>>::new(0.0f32);
            let mut wide_value = Vector::<f32, Const<4>>::new(0.0f32);
            #[unroll]
            for n in 0..OF_WORD {
                let byte = comptime!(n as u32);
                wide_key.insert(n, code_at(key, byte, ptx) * pair.extract(0usize));
                wide_value.insert(n, code_at(value, byte, ptx) * pair.extract(1usize));
            }
            keys[to * words + word] = Vector::cast_from(wide_key);
            values[to * words + word] = Vector::cast_from(wide_value);
        }
    }
}

/// Units per cube.
const UNITS: u32 = 256;

impl CubeDevice {
    /// Widens the keys and values visible to the tokens of a call, in a temporary ring of the problem's [wide
    /// shape](super::AttentionProblem::wide_shape).
    pub(super) fn widen(&self, call: &Call<'_>, codes: &Codes) -> Result<CubeKvCache> {
        let problem = &call.problem;
        let wide = CubeKvCache::unconfirmed(self, problem.wide_shape(self.capabilities()))?;
        let CacheShape { kv_heads, head_dim, capacity: positions, precision } = wide.shape();
        let words = head_dim / 4;
        let count = kv_heads * positions * words;
        let cubes = spread(count.div_ceil(UNITS as usize));
        let settings = Settings { cubes, ..Settings::linear(1, UNITS, 5) };
        let ptx = self.capabilities().ptx;
        let launch = Launch::new("attention/widen", &(precision, words, ptx), settings);
        // Each was checked against a length that fits 32 bits.
        let first = problem.first_position + problem.tokens - positions;
        let [count, first, positions, capacity] =
            [count, first, positions, problem.cache.capacity].map(|n| n as u32);
        self.launch(&launch, &wide.written(), |client, cubes, units| {
            let (k, v) = (call.cache.k.vectors(4), call.cache.v.vectors(4));
            let (scales, keys, values) = (codes.scales.vectors(2), wide.k.vectors(4), wide.v.vectors(4));
            match wide.k {
                KvBuffer::F16(_) => {
                    // SAFETY: slots are below the capacity, and the copy has room for the positions of every head, which are not
                    // more than the capacity (`AttentionProblem::validate`).
                    unsafe {
                        kernel::widen::launch_unchecked::<f16>(
                            client, cubes, units, k, v, scales, keys, values, count, first, positions,
                            capacity, words, ptx,
                        );
                    }
                }
                KvBuffer::F32(_) | KvBuffer::Int8(_) => {
                    // SAFETY: as above.
                    unsafe {
                        kernel::widen::launch_unchecked::<f32>(
                            client, cubes, units, k, v, scales, keys, values, count, first, positions,
                            capacity, words, ptx,
                        );
                    }
                }
            }
        })?;
        Ok(wide)
    }
}

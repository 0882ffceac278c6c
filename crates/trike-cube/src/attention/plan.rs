//! Attention problems and their kernels.

use trike_core::KvPrecision;

use super::cache::CacheShape;
use super::codes::OF_WORD;
use super::mask::MaskedWork;
use super::positions::MAX_POSITION;
use super::{decode, mma, prefill};
use crate::capabilities::Capabilities;
use crate::error::{CubeError, Result, check_range, check_shape, unsupported};
use crate::plan::{KernelProblem, Settings};
use trike_core::Cost;

/// Attention of consecutive tokens of a sequence over its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionProblem {
    /// Query heads.
    pub heads: usize,
    /// Sliding window in positions, including the query's own; `None` = full causal attention.
    pub window: Option<usize>,
    /// Number of query tokens of each sequence.
    pub tokens: usize,
    /// Number of sequences, each with its own cache. Several sequences have one token each, and are planned like one at
    /// `first_position`, the largest of their positions.
    pub sequences: usize,
    /// Position of the first token.
    pub first_position: usize,
    /// Shape of the KV cache.
    pub cache: CacheShape,
    /// Remaining work under a [block mask](super::BlockMask) ([`BlockBitmap::work`](super::BlockBitmap::work)); `None` without a
    /// mask.
    pub mask: Option<MaskedWork>,
}

/// Kernel variants of [`AttentionProblem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttentionBlueprint {
    /// One cube per row, KV head and part of the positions.
    Decode {
        /// Units per cube.
        units: u32,
        /// Query heads per cube.
        heads: usize,
        /// Number of parts of the positions; with more than one, a second kernel combines the partial sums.
        splits: usize,
    },
    /// One cube per 16 rows (tokens times query heads per KV head) and KV head.
    Prefill,
    /// f16 matrix instructions: queries and weights are rounded to f16, sums stay f32. Requires an f16 cache.
    Mma {
        /// Planes per cube, 16 rows each.
        planes: usize,
    },
}

/// Positions that a cube of the decode kernel has in flight, if its shared memory suffices.
const CHUNK: usize = 64;
/// Units per cube of the decode kernel.
const DECODE_UNITS: u32 = 128;
/// Maximum query heads per cube of the decode kernel: their sums stay in registers.
const MOST_HEADS: usize = 4;
/// Multiprocessors assumed for a device that does not report their number.
pub(super) const PROCESSORS: usize = 32;
/// Resident cubes of the decode kernel per multiprocessor: 168 registers per unit with four heads of 128.
const RESIDENT: usize = 3;
/// The same for an int8 cache: 243 registers, because a unit has twice as many columns.
const RESIDENT_OF_CODES: usize = 2;
/// Maximum rows for which the decode kernel, which reads the keys once per row, is preferred.
const FEW_ROWS: usize = 16;

impl AttentionProblem {
    /// Query tokens of all sequences.
    pub(super) fn rows(&self) -> usize {
        self.tokens.saturating_mul(self.sequences)
    }

    fn share(&self) -> usize {
        self.heads / self.cache.kv_heads
    }

    /// Number of positions visible to a token.
    fn seen(&self, token: usize) -> usize {
        (self.first_position + token + 1).min(self.window.unwrap_or(usize::MAX))
    }

    /// [`horizon`] of the last token.
    #[must_use]
    pub fn horizon(&self) -> usize {
        let last = self.first_position.saturating_add(self.tokens.max(1) - 1);
        horizon(last, self.window, self.cache.capacity)
    }

    pub(super) fn decode_form(
        &self,
        units: u32,
        heads: usize,
        splits: usize,
        device: &Capabilities,
    ) -> decode::Form {
        let CacheShape { head_dim, precision, .. } = self.cache;
        let form = |width, parts| {
            let form = decode::Form {
                head_dim,
                share: self.share(),
                heads,
                units: units as usize,
                width,
                parts,
                codes: precision == KvPrecision::Int8,
                each: 1,
                split: splits > 1,
                chosen: false,
                ptx: device.ptx,
            };
            form.with_turns_of(CHUNK, device.max_shared_bytes)
        };
        if precision == KvPrecision::Int8 {
            // Loads of 16 bytes, or fewer if a head has fewer than four such loads: the groups are then small, and a cube has so
            // many of them that combining their sums takes most of the time and may exceed shared memory.
            let words = [4, 2]
                .into_iter()
                .filter(|words| head_dim.is_multiple_of(words * OF_WORD) && head_dim >= 4 * words * OF_WORD);
            let forms = words.map(|words| form(words * OF_WORD, words));
            let mut fitting = forms.filter(|form| form.shared_bytes() <= device.max_shared_bytes);
            return fitting.next().unwrap_or_else(|| form(OF_WORD, 1));
        }
        // Loads of 16 bytes, if the device has such vectors.
        let widest = if precision == KvPrecision::F32 { 4 } else { 8 };
        let wide = head_dim.is_multiple_of(widest) && widest <= device.max_vector;
        form(if wide { widest } else { self.cache.lanes() }, 1)
    }

    /// The shape of the temporary cache to which prefill kernels widen an int8 cache: the visible positions, in f16, or in f32 if
    /// the device has no f16.
    #[doc(hidden)]
    #[must_use]
    pub fn wide_shape(&self, device: &Capabilities) -> CacheShape {
        let capacity = self.seen(0) + self.tokens - 1;
        let precision = if device.f16 { KvPrecision::F16 } else { KvPrecision::F32 };
        CacheShape { capacity, precision, ..self.cache }
    }

    pub(super) fn prefill_form(&self) -> prefill::Form {
        prefill::Form { head_dim: self.cache.head_dim, share: self.share(), masked: self.mask.is_some() }
    }

    pub(super) fn mma_form(&self, planes: usize) -> mma::Form {
        let (windowed, masked) = (self.window.is_some(), self.mask.is_some());
        mma::Form { head_dim: self.cache.head_dim, share: self.share(), planes, windowed, masked }
    }

    /// Cubes along the rows, with `rows` rows per cube.
    fn blocks(&self, rows: usize) -> usize {
        (self.tokens * self.share()).div_ceil(rows)
    }

    /// Floats of the partial results of all rows for the second kernel.
    pub(super) fn parts(&self, splits: usize) -> Result<usize> {
        let rows = self.rows().saturating_mul(self.heads).saturating_mul(splits);
        check_shape("parts of an attention", rows, self.cache.head_dim + 2)
    }
}

/// Number of positions that attention at `position` is planned for: at least the visible ones, and equal for ranges of `position`,
/// so that a launch recorded at one position is valid for the others.
///
/// The visible positions in chunks of 64, with the number of chunks rounded up to a power of two, and capped by the window and the
/// capacity.
#[must_use]
pub fn horizon(position: usize, window: Option<usize>, capacity: usize) -> usize {
    let window = window.unwrap_or(usize::MAX);
    let seen = position.saturating_add(1).min(window);
    let chunks = seen.div_ceil(CHUNK).checked_next_power_of_two().unwrap_or(usize::MAX);
    chunks.saturating_mul(CHUNK).min(window.min(capacity).max(seen))
}

impl KernelProblem for AttentionProblem {
    type Blueprint = AttentionBlueprint;
    const NAME: &'static str = "attention";

    fn validate(&self) -> Result<()> {
        self.cache.elements()?;
        check_range("query heads of attention", 1, 1 << 16, self.heads)?;
        if !self.heads.is_multiple_of(self.cache.kv_heads) {
            let (unit, got) = (self.cache.kv_heads, self.heads);
            return Err(CubeError::NotMultiple { what: "query heads of attention", unit, got });
        }
        check_range("sequences of attention", 1, MAX_POSITION, self.sequences)?;
        let most = if self.sequences > 1 { 1 } else { MAX_POSITION };
        check_range("tokens of attention", 1, most, self.tokens)?;
        check_range("first position of attention", 0, MAX_POSITION - self.tokens, self.first_position)?;
        check_range("window of attention", 1, usize::MAX, self.window.unwrap_or(1))?;
        if self.mask.is_some() {
            check_range("sequences of masked attention", 1, 1, self.sequences)?;
        }
        check_shape("queries of attention", self.rows(), self.heads.saturating_mul(self.cache.head_dim))?;
        // From the oldest position visible to the first token to the last token's own.
        let needed = self.seen(0) + self.tokens - 1;
        check_range("positions that a cache has to hold", 1, self.cache.capacity, needed)
    }

    fn candidates(&self, device: &Capabilities) -> Vec<AttentionBlueprint> {
        let most = device.max_units.min(device.max_unit_sides[0]);
        let units = 1 << DECODE_UNITS.min(most).max(1).ilog2();
        let fits = |heads: &usize| {
            self.decode_form(units, *heads, 1, device).shared_bytes() <= device.max_shared_bytes
        };
        let heads = (1..=self.share().min(MOST_HEADS)).rev().find(fits).unwrap_or(1);
        let chunks = self.horizon().div_ceil(CHUNK);
        let cubes = self.rows() * self.cache.kv_heads * self.share().div_ceil(heads);
        let processors = device.multiprocessors.map_or(PROCESSORS, |n| n as usize);
        let is_codes = self.cache.precision == KvPrecision::Int8;
        let resident = if is_codes { RESIDENT_OF_CODES } else { RESIDENT };
        let splits = (resident * processors).div_ceil(cubes).clamp(1, chunks);
        let decode = AttentionBlueprint::Decode { units, heads, splits };
        let mut all = vec![decode];
        if splits > 1 {
            all.push(AttentionBlueprint::Decode { units, heads, splits: 1 });
        } else if chunks > 1 {
            all.push(AttentionBlueprint::Decode { units, heads, splits: 2 });
        }
        let possible = |blueprint: &AttentionBlueprint| {
            self.settings(blueprint, device).is_ok_and(|s| s.check(Self::NAME, device).is_ok())
        };
        // Two cubes of four planes fill a multiprocessor, and one multiplies while the other computes weights. Larger cubes read
        // keys less often, smaller ones occupy more of the device.
        let wide = self.blocks(4 * mma::PLANE_ROWS) * self.cache.kv_heads >= processors;
        let planes: &[usize] = if wide { &[4, 8, 2] } else { &[2, 4, 8] };
        let mma = planes.iter().map(|&planes| AttentionBlueprint::Mma { planes });
        // Kernels for many tokens support a single cache.
        if self.sequences > 1 {
            return all;
        }
        let tiles: Vec<_> = mma.chain([AttentionBlueprint::Prefill]).filter(possible).collect();
        if self.mask.is_some() {
            // The kernel for few rows has no tiles to skip. If no other one fits, its error is returned.
            return if tiles.is_empty() { vec![AttentionBlueprint::Prefill] } else { tiles };
        }
        let many = self.tokens > 1 && self.tokens * self.share() > FEW_ROWS;
        let at = if many { 0 } else { all.len() };
        all.splice(at..at, tiles);
        all
    }

    fn settings(&self, blueprint: &AttentionBlueprint, device: &Capabilities) -> Result<Settings> {
        let CacheShape { kv_heads, head_dim, precision, .. } = self.cache;
        let missing = match precision {
            KvPrecision::F32 => None,
            KvPrecision::F16 => (!device.f16).then_some("f16"),
            KvPrecision::Int8 => None,
            KvPrecision::Int4 => Some("an int4 KV cache"),
            KvPrecision::Int8Int4 => Some("an int8-int4 KV cache"),
        };
        if let Some(feature) = missing {
            let device = device.name.clone();
            return Err(CubeError::Feature { kernel: Self::NAME, feature, device });
        }
        // `Settings::check` rejects a number that does not fit.
        let sides = |x: usize, y: usize, z: usize| [x, y, z].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        // The mask is an additional buffer.
        let buffers = 4 + usize::from(self.mask.is_some());
        match *blueprint {
            AttentionBlueprint::Decode { .. } if self.mask.is_some() => {
                unsupported("attention/decode", "a block mask", "use the kernels for prompts")
            }
            AttentionBlueprint::Decode { units, heads, splits } => {
                check_range("query heads of a cube", 1, self.share().min(8), heads)?;
                check_range("parts of the positions", 1, self.horizon().div_ceil(CHUNK), splits)?;
                check_range("units of a cube of attention", 32, 512, units as usize)?;
                if !units.is_power_of_two() {
                    let (what, got) = ("units of a cube (power of two)", units as usize);
                    return Err(CubeError::NotMultiple { what, unit: 32, got });
                }
                let form = self.decode_form(units, heads, splits, device);
                if splits > 1 {
                    self.parts(splits)?;
                }
                let cubes = sides(splits, kv_heads * self.share().div_ceil(heads), self.rows());
                let buffers = 5 + usize::from(form.codes);
                Ok(Settings { cubes, ..Settings::linear(1, units, buffers) }.shared(form.shared_bytes()))
            }
            AttentionBlueprint::Prefill | AttentionBlueprint::Mma { .. } if self.sequences > 1 => {
                Err(CubeError::Range {
                    what: "sequences of a prompt",
                    minimum: 1,
                    maximum: 1,
                    got: self.sequences,
                })
            }
            AttentionBlueprint::Prefill => {
                if !head_dim.is_multiple_of(4) {
                    return Err(CubeError::NotMultiple {
                        what: "head_dim of a prefill",
                        unit: 4,
                        got: head_dim,
                    });
                }
                let cubes = sides(self.blocks(prefill::ROWS), kv_heads, 1);
                let settings = Settings { cubes, ..Settings::linear(1, prefill::UNITS as u32, buffers) };
                Ok(settings.shared(self.prefill_form().shared_bytes()))
            }
            AttentionBlueprint::Mma { planes } => {
                let missing = |feature| {
                    let device = device.name.clone();
                    Err(CubeError::Feature { kernel: Self::NAME, feature, device })
                };
                if !device.f16_mma {
                    return missing("matrix instructions on f16");
                }
                if !device.async_copy {
                    return missing("asynchronous copies");
                }
                if device.planes != Some((mma::LANES as u32, mma::LANES as u32)) {
                    return missing("planes of 32 units");
                }
                // An int8 cache is widened to f16 first.
                if precision == KvPrecision::F32 {
                    return missing("matrix instructions on an f32 cache");
                }
                if !head_dim.is_multiple_of(32) {
                    let what = "head_dim of attention with matrix instructions";
                    return Err(CubeError::NotMultiple { what, unit: 32, got: head_dim });
                }
                check_range("head_dim of attention with matrix instructions", 32, 128, head_dim)?;
                check_range("planes of a cube of attention", 1, 8, planes)?;
                let form = self.mma_form(planes);
                if !form.even() {
                    let what = "vectors of a tile, split across planes";
                    return Err(CubeError::NotMultiple { what, unit: planes, got: head_dim / 16 });
                }
                let cubes = sides(self.blocks(mma::PLANE_ROWS * planes), kv_heads, 1);
                let settings = Settings {
                    cubes,
                    units: [mma::LANES as u32, planes as u32],
                    ..Settings::linear(1, 1, buffers)
                };
                Ok(settings.shared(form.shared_bytes()))
            }
        }
    }

    fn cost(&self) -> Cost {
        let CacheShape { kv_heads, head_dim, precision, .. } = self.cache;
        // While the window is not full, each token sees one position more than the previous one.
        let full = self.seen(self.tokens - 1);
        let growing = full - self.seen(0);
        let pairs = self.tokens as u64 * full as u64 - growing as u64 * (growing as u64 + 1) / 2;
        let whole = MaskedWork {
            pairs: pairs * kv_heads as u64,
            keys: ((self.seen(0) + self.tokens - 1) * kv_heads) as u64,
        };
        let MaskedWork { pairs, keys } = self.mask.unwrap_or(whole);
        let read = precision.bytes_per_position(head_dim) as u64 * keys;
        let queries = 8 * self.tokens as u64 * (self.heads * head_dim) as u64;
        let sequences = self.sequences as u64;
        Cost {
            macs: sequences * 2 * pairs * (self.share() * head_dim) as u64,
            bytes: sequences * (read + queries),
        }
    }
}

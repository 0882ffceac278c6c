//! Measured ceilings of a device: kernels that only copy, and kernels that only multiply in registers.
//!
//! Utilization is reported relative to these ceilings, measured in the same run, not to a data sheet.

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;
use half::f16;

use crate::capabilities::Capabilities;
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{CubeError, Result, check_len, check_range};
use crate::plan::Settings;
use trike_core::Cost;

type Quad = Vector<u32, Const<4>>;

/// Units per cube.
const UNITS: u32 = 256;
/// Vectors copied per unit; all loads precede the first store.
const EACH: usize = 4;
/// Independent accumulators per unit or plane.
const CHAINS: usize = 8;
/// Maximum rounds per launch: sums must not overflow.
pub const MAX_ROUNDS: usize = 1 << 12;

/// int8 operands: the first, then the second for even and for odd chains.
const BYTES: [u32; 3] = [0x7f03_fb81, 0x05fe_0b07, 0xf90d_02ff];
/// Pairs of f16 values, low half first: 0.5 and -1.25; 1.5 and 0.75; -0.25 and 2.
const HALVES: [u32; 3] = [0xbd00_3800, 0x3a00_3e00, 0x4000_b400];

/// Kind of product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Products {
    /// Dot products of four int8, available on every device in some form.
    Dp4a,
    /// `mma` s8 m16n8k32.
    Int8Mma,
    /// `mma` f16 m16n8k16 with f32 accumulation.
    F16Mma,
}

impl Products {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Dp4a, Self::Int8Mma, Self::F16Mma];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dp4a => "dp4a",
            Self::Int8Mma => "int8 mma",
            Self::F16Mma => "f16 mma",
        }
    }

    /// Returns true if the device supports the instruction.
    #[must_use]
    pub fn is_supported(self, device: &Capabilities) -> bool {
        let warps = device.planes == Some((32, 32));
        match self {
            Self::Dp4a => true,
            Self::Int8Mma => device.int8_mma && warps,
            Self::F16Mma => device.f16_mma && warps,
        }
    }

    /// Multiply-adds per unit and round.
    fn macs(self) -> u64 {
        let of_chain = match self {
            Self::Dp4a => 4,
            Self::Int8Mma => 16 * 8 * 32 / 32,
            Self::F16Mma => 16 * 8 * 16 / 32,
        };
        of_chain * CHAINS as u64
    }

    /// Expected word of every unit after `rounds` rounds: the sum of its chains, as an integer.
    ///
    /// Operands are equal in all lanes, so every element of a product is a multiple of one dot product of four int8 or two f16,
    /// in any order of columns.
    #[must_use]
    pub fn result(self, rounds: usize) -> i32 {
        let bytes = |a: u32, b: u32| -> i32 {
            let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            pairs.map(|(a, b)| i32::from(a as i8) * i32::from(b as i8)).sum()
        };
        let halves = |a: u32, b: u32| -> f32 {
            let of = |word: u32, at: u32| f16::from_bits((word >> (16 * at)) as u16).to_f32();
            of(a, 0) * of(b, 0) + of(a, 1) * of(b, 1)
        };
        // Half of the chains of each kind; four elements per lane.
        let rounds = rounds as i32;
        let both = CHAINS as i32 / 2;
        match self {
            Self::Dp4a => both * rounds * (bytes(BYTES[0], BYTES[1]) + bytes(BYTES[0], BYTES[2])),
            Self::Int8Mma => both * 4 * rounds * 8 * (bytes(BYTES[0], BYTES[1]) + bytes(BYTES[0], BYTES[2])),
            Self::F16Mma => {
                let sum = halves(HALVES[0], HALVES[1]) + halves(HALVES[0], HALVES[2]);
                (both as f32 * 4.0 * rounds as f32 * 8.0 * sum) as i32
            }
        }
    }
}

/// Unit `u` of cube `c` copies four vectors: `c * 1024 + u` and every 256th after it.
#[cube(launch_unchecked)]
fn copy_vectors(from: &[Quad], to: &mut [Quad], #[comptime] each: usize) {
    let first = CUBE_POS * CUBE_DIM as usize * each + UNIT_POS as usize;
    let last = from.len() - 1;
    let mut taken = Array::<Quad>::new(each);
    #[unroll]
    for i in 0..each {
        let index = first + comptime!(i) * CUBE_DIM as usize;
        taken[i] = from[clamp_max(index, last)];
    }
    #[unroll]
    for i in 0..each {
        let index = first + comptime!(i) * CUBE_DIM as usize;
        if index < to.len() {
            to[index] = taken[i];
        }
    }
}

/// Every unit adds up `rounds * CHAINS` products and writes one word.
#[cube(launch_unchecked)]
fn dot_bytes(out: &mut [i32], rounds: u32, a: u32, b: u32, c: u32, #[comptime] chains: usize) {
    let mut sums = Array::<i32>::new(chains);
    #[unroll]
    for n in 0..chains {
        sums[n] = 0;
    }
    let mut operands = Array::<i32>::new(2usize);
    operands[0] = i32::reinterpret(b);
    operands[1] = i32::reinterpret(c);
    for _ in 0..rounds {
        #[unroll]
        for n in 0..chains {
            sums[n] = dp4a(i32::reinterpret(a), operands[comptime!(n % 2)], sums[n]);
        }
    }
    let mut sum = 0i32;
    #[unroll]
    for n in 0..chains {
        sum += sums[n];
    }
    out[CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize] = sum;
}

/// As [`dot_bytes`], with `mma` s8 m16n8k32: every lane of a plane adds up its four elements.
#[cube(launch_unchecked)]
fn multiply_bytes(out: &mut [i32], rounds: u32, a: u32, b: u32, c: u32, #[comptime] chains: usize) {
    let def = MmaDefinition::<i8, i8, i32>::new(16usize, 8usize, 32usize);
    let size!(NA) = def.vector_size(MatrixIdent::A);
    let size!(NB) = def.vector_size(MatrixIdent::B);
    let size!(NC) = def.vector_size(MatrixIdent::Accumulator);
    let mut acc = Sequence::<Array<Vector<i32, NC>>>::new();
    #[unroll]
    for _ in 0..chains {
        let mut zero = Array::<Vector<i32, NC>>::new(2usize);
        zero[0] = Vector::zeroed();
        zero[1] = Vector::zeroed();
        acc.push(zero);
    }
    let mut first = Array::<Vector<i8, NA>>::new(4usize);
    #[unroll]
    for j in 0..4usize {
        first[j] = Vector::<i8, NA>::reinterpret(a);
    }
    let mut even = Array::<Vector<i8, NB>>::new(2usize);
    let mut odd = Array::<Vector<i8, NB>>::new(2usize);
    #[unroll]
    for j in 0..2usize {
        even[j] = Vector::<i8, NB>::reinterpret(b);
        odd[j] = Vector::<i8, NB>::reinterpret(c);
    }
    for _ in 0..rounds {
        #[unroll]
        for n in 0..chains {
            if comptime!(n % 2 == 0) {
                def.execute_inplace(&first, &even, acc.index_mut(n));
            } else {
                def.execute_inplace(&first, &odd, acc.index_mut(n));
            }
        }
    }
    let mut sum = 0i32;
    #[unroll]
    for n in 0..chains {
        let sums = acc.index_mut(n);
        #[unroll]
        for half in 0..2usize {
            sum += sums[half].extract(0usize) + sums[half].extract(1usize);
        }
    }
    out[CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize] = sum;
}

/// As [`multiply_bytes`], with `mma` f16 m16n8k16.
#[cube(launch_unchecked)]
fn multiply_halves(out: &mut [i32], rounds: u32, a: u32, b: u32, c: u32, #[comptime] chains: usize) {
    let def = MmaDefinition::<f16, f16, f32>::new(16usize, 8usize, 16usize);
    let size!(NA) = def.vector_size(MatrixIdent::A);
    let size!(NB) = def.vector_size(MatrixIdent::B);
    let size!(NC) = def.vector_size(MatrixIdent::Accumulator);
    let mut acc = Sequence::<Array<Vector<f32, NC>>>::new();
    #[unroll]
    for _ in 0..chains {
        let mut zero = Array::<Vector<f32, NC>>::new(2usize);
        zero[0] = Vector::zeroed();
        zero[1] = Vector::zeroed();
        acc.push(zero);
    }
    let mut first = Array::<Vector<f16, NA>>::new(4usize);
    #[unroll]
    for j in 0..4usize {
        first[j] = Vector::<f16, NA>::reinterpret(a);
    }
    let mut even = Array::<Vector<f16, NB>>::new(2usize);
    let mut odd = Array::<Vector<f16, NB>>::new(2usize);
    #[unroll]
    for j in 0..2usize {
        even[j] = Vector::<f16, NB>::reinterpret(b);
        odd[j] = Vector::<f16, NB>::reinterpret(c);
    }
    for _ in 0..rounds {
        #[unroll]
        for n in 0..chains {
            if comptime!(n % 2 == 0) {
                def.execute_inplace(&first, &even, acc.index_mut(n));
            } else {
                def.execute_inplace(&first, &odd, acc.index_mut(n));
            }
        }
    }
    let mut sum = 0.0f32;
    #[unroll]
    for n in 0..chains {
        let sums = acc.index_mut(n);
        #[unroll]
        for half in 0..2usize {
            sum += sums[half].extract(0usize) + sums[half].extract(1usize);
        }
    }
    out[CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize] = i32::cast_from(sum);
}

impl CubeDevice {
    /// Copies a buffer with 16-byte loads and stores: every byte is read once and written once.
    ///
    /// # Errors
    ///
    /// [`CubeError::Length`] when the lengths differ, [`CubeError::NotMultiple`] when they are not a multiple of four words,
    /// [`CubeError::Overlap`] when the buffers share memory, [`CubeError::Limit`] for more cubes than the device supports, and
    /// [`CubeError::Launch`].
    pub fn probe_copy(&self, from: &Buffer<u32>, to: &Buffer<u32>) -> Result<Cost> {
        check_len("copy", from.len(), to.len())?;
        if !from.len().is_multiple_of(4) {
            return Err(CubeError::NotMultiple { what: "words of a copy", unit: 4, got: from.len() });
        }
        if from.overlaps(to) {
            return Err(CubeError::Overlap { what: "source and destination of a copy" });
        }
        let settings = Settings::linear((from.len() / 4).div_ceil(UNITS as usize * EACH), UNITS, 2);
        self.launch(&Launch::new("probe/copy", &EACH, settings), &[to], |client, cubes, units| {
            let (from, to) = (from.vectors(4), to.vectors(4));
            // SAFETY: the lengths were checked above; loads are clamped to them and stores checked against them.
            unsafe { copy_vectors::launch_unchecked(client, cubes, units, from, to, EACH) };
        })?;
        Ok(Cost { macs: 0, bytes: 2 * from.bytes() as u64 })
    }

    /// Multiplies in registers for `rounds` rounds. Each unit writes [`Products::result`] to one word of `out`, whose length
    /// must be a multiple of 256.
    ///
    /// # Errors
    ///
    /// [`CubeError::Feature`] when the device lacks the instruction, [`CubeError::NotMultiple`], [`CubeError::Range`] for zero
    /// rounds or more than 4096, [`CubeError::Limit`] and [`CubeError::Launch`].
    pub fn probe_products(&self, products: Products, rounds: usize, out: &Buffer<i32>) -> Result<Cost> {
        const KERNEL: &str = "probe/products";
        if !products.is_supported(self.capabilities()) {
            let (feature, device) = (products.name(), self.name().to_owned());
            return Err(CubeError::Feature { kernel: KERNEL, feature, device });
        }
        check_range("rounds of products", 1, MAX_ROUNDS, rounds)?;
        if !out.len().is_multiple_of(UNITS as usize) {
            let unit = UNITS as usize;
            return Err(CubeError::NotMultiple { what: "output words of a probe", unit, got: out.len() });
        }
        let settings = Settings::linear(out.len() / UNITS as usize, UNITS, 1);
        self.launch(&Launch::new(KERNEL, &products, settings), &[out], |client, cubes, units| {
            let (to, rounds) = (out.arg(), rounds as u32);
            let [a, b, c] = if products == Products::F16Mma { HALVES } else { BYTES };
            // Operands are launch arguments, so that the compiler cannot fold the products.
            match products {
                Products::Dp4a => {
                    // SAFETY: there is one unit per word of `out`.
                    unsafe {
                        dot_bytes::launch_unchecked(client, cubes, units, to, rounds, a, b, c, CHAINS);
                    }
                }
                Products::Int8Mma => {
                    // SAFETY: as above; the instruction and planes of 32 units were checked.
                    unsafe {
                        multiply_bytes::launch_unchecked(client, cubes, units, to, rounds, a, b, c, CHAINS);
                    }
                }
                Products::F16Mma => {
                    // SAFETY: as above; the instruction and planes of 32 units were checked.
                    unsafe {
                        multiply_halves::launch_unchecked(client, cubes, units, to, rounds, a, b, c, CHAINS);
                    }
                }
            }
        })?;
        Ok(Cost { macs: products.macs() * (rounds * out.len()) as u64, bytes: out.bytes() as u64 })
    }
}

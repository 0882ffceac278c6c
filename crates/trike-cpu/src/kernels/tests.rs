//! The integer and the f32 stage of every instruction set against the specification, below the level where
//! activations are quantized: codes of -128, which quantization never makes, and every unit size.

use trike_testkit::Rng;

use super::{ByteToken, Kernels};
use crate::Isa;
use crate::isa::with_kernels;
use crate::line::{BLOCK, ByteLine, CodeLine, FloatLine, Line, SumLine, TILE};

/// Inputs of one call, as the packers lay them out.
struct Case {
    blocks: usize,
    trits: Vec<i8>,
    bytes: Vec<i8>,
    floats: Vec<f32>,
    scales: Vec<[f32; TILE]>,
    factors: Vec<f32>,
}

impl Case {
    fn new(blocks: usize, mut trit: impl FnMut() -> i8, mut byte: impl FnMut() -> i8, rng: &mut Rng) -> Self {
        let cols = blocks * BLOCK;
        Self {
            blocks,
            trits: (0..TILE * cols).map(|_| trit()).collect(),
            bytes: (0..cols).map(|_| byte()).collect(),
            floats: rng.normals(cols),
            scales: (0..cols / 32).map(|_| [0; TILE].map(|_| rng.normal())).collect(),
            factors: rng.normals(cols / 32),
        }
    }

    fn tile(&self) -> Vec<CodeLine> {
        let mut lines = vec![Line([0u8; 64]); self.blocks * TILE];
        for (i, trit) in self.trits.iter().enumerate() {
            let (row, col) = (i / (self.blocks * BLOCK), i % (self.blocks * BLOCK));
            let line = &mut lines[col / BLOCK * TILE + row];
            line.0[col % 64] |= ((trit + 1) as u8) << (2 * (col % BLOCK / 64));
        }
        lines
    }

    fn byte_lines(&self) -> (Vec<ByteLine>, Vec<SumLine>) {
        let codes: Vec<ByteLine> = self.bytes.as_chunks::<64>().0.iter().map(|codes| Line(*codes)).collect();
        let sum = |four: &[i8; 4]| -four.iter().map(|&v| i32::from(v)).sum::<i32>();
        let sums = |codes: &ByteLine| {
            let mut sums = [0; 16];
            sums.iter_mut().zip(codes.0.as_chunks::<4>().0).for_each(|(out, four)| *out = sum(four));
            Line(sums)
        };
        let negated = codes.iter().map(sums).collect();
        (codes, negated)
    }

    /// What every kernel makes of the case: integers, and the bits of floats.
    fn run<K: Kernels, const T: usize>(&self, kernels: K) -> (Vec<i32>, Vec<u32>) {
        let (tile, (codes, negated)) = (self.tile(), self.byte_lines());
        let sum = self.bytes.iter().map(|&v| i32::from(v)).sum();
        let token = ByteToken { codes: &codes, negated: &negated, sum, factors: &self.factors };
        let lines: Vec<FloatLine> = self.floats.as_chunks::<16>().0.iter().map(|x| Line(*x)).collect();
        let (bytes, floats, scales) = ([token; T], [lines.as_slice(); T], self.scales.as_slice());
        let parts = [
            kernels.ternary_rows_f32(&tile, floats),
            kernels.ternary_units_f32::<T, 32>(&tile, scales, floats),
            kernels.ternary_units_f32::<T, 64>(&tile, scales, floats),
            kernels.ternary_units_f32::<T, 128>(&tile, scales, floats),
            kernels.ternary_units_f32::<T, 256>(&tile, scales, floats),
            kernels.ternary_units_i8::<T, 32, false>(&tile, scales, bytes),
            kernels.ternary_units_i8::<T, 64, false>(&tile, scales, bytes),
            kernels.ternary_units_i8::<T, 128, false>(&tile, scales, bytes),
            kernels.ternary_units_i8::<T, 256, false>(&tile, scales, bytes),
            kernels.ternary_units_i8::<T, 32, true>(&tile, scales, bytes),
            kernels.ternary_units_i8::<T, 64, true>(&tile, scales, bytes),
            kernels.ternary_units_i8::<T, 128, true>(&tile, scales, bytes),
            kernels.ternary_units_i8::<T, 256, true>(&tile, scales, bytes),
        ];
        let floats = parts.as_flattened().as_flattened().iter().map(|v| v.to_bits()).collect();
        (kernels.ternary_rows_i8(&tile, bytes).as_flattened().to_vec(), floats)
    }
}

/// The integer stage must equal the definition, and the floats those of the scalar kernels to the bit.
fn check(case: &Case) {
    let dot =
        |row: &[i8]| row.iter().zip(&case.bytes).map(|(&t, &x)| i64::from(t) * i64::from(x)).sum::<i64>();
    let want: Vec<i64> = case.trits.chunks(case.blocks * BLOCK).map(dot).collect();
    let mut first: Option<(Vec<u32>, Vec<u32>)> = None;
    for isa in Isa::available() {
        let (one, four) =
            with_kernels!(isa, kernels => (case.run::<_, 1>(kernels), case.run::<_, 4>(kernels)));
        let widened: Vec<i64> = one.0.iter().chain(&four.0).map(|&v| i64::from(v)).collect();
        assert_eq!(widened, want.repeat(5), "{isa}: {} blocks", case.blocks);
        let floats = (one.1, four.1);
        assert_eq!(*first.get_or_insert_with(|| floats.clone()), floats, "{isa}: {} blocks", case.blocks);
    }
}

#[test]
fn extreme_codes_are_exact() {
    for blocks in [1, 2, 3, 16, 4096] {
        for trit in [-1, 0, 1] {
            for byte in [-128, -127, 127] {
                check(&Case::new(blocks, || trit, || byte, &mut Rng::new(1)));
            }
        }
    }
}

#[test]
fn a_thousand_random_tiles() {
    let mut rng = Rng::new(2);
    for _ in 0..1000 {
        let (blocks, seed) = (1 + rng.below(4), rng.next_u64());
        let (mut trits, mut bytes) = (Rng::new(seed), Rng::new(!seed));
        check(&Case::new(blocks, || trits.below(3) as i8 - 1, || bytes.next_u64() as i8, &mut rng));
    }
}

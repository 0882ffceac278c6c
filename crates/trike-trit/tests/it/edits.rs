//! Long sequences of edits, compared with a dense model, and their memory use.

use proptest::prelude::*;
use trike_trit::{Coupling, Edit, Encoding, Scales, Trit, TritTensor};

/// A tensor, its expected trits, and a random number generator.
struct Model {
    tensor: TritTensor,
    rows: usize,
    cols: usize,
    trits: Vec<i8>,
    state: u64,
}

impl Model {
    /// Random trits, `percent` of them nonzero.
    fn new(rows: usize, cols: usize, encoding: Encoding, percent: usize, seed: u64) -> Self {
        let mut model = Self {
            tensor: fresh(rows, cols, &vec![0; rows * cols], encoding),
            rows,
            cols,
            trits: Vec::new(),
            state: seed,
        };
        model.trits =
            (0..rows * cols).map(|_| if model.below(100) < percent { model.sign() } else { 0 }).collect();
        model.tensor = fresh(rows, cols, &model.trits, encoding);
        model
    }

    fn below(&mut self, limit: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % limit
    }

    fn sign(&mut self) -> i8 {
        self.below(2) as i8 * 2 - 1
    }

    fn set(&mut self, row: usize, col: usize, value: i8) {
        let at = row * self.cols + col;
        let old = std::mem::replace(&mut self.trits[at], value);
        let trit = Trit::from_value(value).expect("a trit");
        assert_eq!(self.tensor.set(0, row, col, trit).expect("a place").value(), old);
    }

    /// Edits of one kind: random places, a row that fills up from a random column, or one that becomes empty.
    fn burst(&mut self, count: usize) {
        let (kind, row, start) = (self.below(5), self.below(self.rows), self.below(self.cols));
        // The last row: nothing is stored after it.
        let row = if kind == 0 { self.rows - 1 } else { row };
        for i in 0..count {
            let sign = self.sign();
            match kind {
                0 | 1 => self.set(row, (start + i) % self.cols, sign),
                2 => self.set(row, (start + i) % self.cols, 0),
                3 => {
                    let (row, col) = (self.below(self.rows), self.below(self.cols));
                    self.set(row, col, 0);
                }
                _ => {
                    let (row, col) = (self.below(self.rows), self.below(self.cols));
                    self.set(row, col, sign);
                }
            }
        }
    }

    /// Compares every property of the tensor with a new tensor of the same trits.
    fn check(&self) {
        let encoding = self.tensor.encoding();
        let fresh = fresh(self.rows, self.cols, &self.trits, encoding);
        assert_eq!(self.tensor, fresh);
        assert_eq!(self.tensor.sparsity(0), fresh.sparsity(0));
        assert_eq!(self.tensor.data(0), fresh.data(0));
        assert_eq!(self.tensor.bytes(), fresh.bytes());
        assert_eq!(self.tensor.dequantize(), fresh.dequantize());
        let other = if encoding == Encoding::TwoBit { Encoding::Base3 } else { Encoding::TwoBit };
        assert_eq!(self.tensor.to_encoding(other), fresh.to_encoding(other));
        let mut part = vec![9; self.cols.min(100)];
        for row in 0..self.rows {
            let start = (row * 8111) % (self.cols - part.len() + 1);
            self.tensor.row(0, row).expect("a row").read(start, &mut part).expect("columns");
            assert_eq!(part, self.trits[row * self.cols + start..][..part.len()]);
        }
        let (mut compact, mut clone) = (self.tensor.clone(), self.tensor.clone());
        compact.compact();
        assert_eq!((compact.memory_bytes(), &compact), (fresh.bytes(), &fresh));
        // Both forms can be edited further.
        for tensor in [&mut compact, &mut clone] {
            let old = tensor.set(0, self.rows - 1, self.cols - 1, Trit::N).expect("a place");
            tensor.set(0, self.rows - 1, self.cols - 1, old).expect("a place");
            assert_eq!(*tensor, fresh);
        }
    }

    /// The bound of [`TritTensor::memory_bytes`], with `before` bytes before the first edit.
    fn bound(&self, before: usize) -> usize {
        let (rows, nonzeros) = (self.rows, self.trits.iter().filter(|&&t| t != 0).count());
        match self.tensor.encoding() {
            Encoding::Bitmap => before + rows * (4 + 8 * self.cols.div_ceil(64) + 64),
            Encoding::RowCompressed => {
                before + rows * (4 + 40 * self.cols.div_ceil(2048) + 64) + 6 * nonzeros
            }
            Encoding::Planes | Encoding::TwoBit | Encoding::Base3 => before,
        }
    }
}

fn fresh(rows: usize, cols: usize, trits: &[i8], encoding: Encoding) -> TritTensor {
    TritTensor::from_trits(rows, cols, trits, encoding, Scales::tensor(0.5)).expect("trits")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_sequence_of_edits_leaves_the_tensor_of_its_trits(
        rows in 1usize..5,
        cols in prop_oneof![Just(1usize), 2usize..300, Just(2048), Just(4097), Just(20_000)],
        percent in prop_oneof![Just(0usize), Just(5), Just(60), Just(100)],
        seed in any::<u64>(),
    ) {
        for encoding in Encoding::ALL {
            let mut model = Model::new(rows, cols, encoding, percent, seed);
            let before = model.tensor.memory_bytes();
            prop_assert_eq!(before, model.tensor.bytes());
            for _ in 0..6 {
                model.burst(cols.min(400));
                let (held, bound) = (model.tensor.memory_bytes(), model.bound(before));
                prop_assert!(held <= bound, "{encoding} {rows} x {cols}: {held} bytes held, expected at most {bound}");
            }
            model.check();
        }
    }
}

#[test]
fn long_rows_fill_up_and_empty_again() {
    for encoding in Encoding::ALL {
        let (rows, cols) = (2, 65_537 + 40);
        let mut model = Model::new(rows, cols, encoding, 5, 7);
        let before = model.tensor.memory_bytes();
        for value in [1, 0, -1] {
            for col in 0..cols {
                // Neither in column order nor near each other.
                model.set(rows - 1, col * 40_009 % cols, value);
            }
            assert!(model.tensor.memory_bytes() <= model.bound(before), "{encoding}");
            model.check();
        }
        // Skips of 127 zeros appear and disappear around a lone nonzero.
        for col in 0..cols {
            model.set(0, col, 0);
        }
        for col in [cols - 1, 0, 127, 253, 254, 2047, 2048, 40_000] {
            model.set(0, col, 1);
            model.check();
        }
    }
}

#[test]
fn a_batch_is_made_as_a_whole_and_taken_back_by_its_reverse() {
    for encoding in Encoding::ALL {
        let trits: Vec<i8> = (0..3 * 700).map(|i| [0, 0, 1, 0, -1][i * i % 5]).collect();
        let planes: [&[i8]; 2] = [&trits, &trits];
        let mut tensor =
            TritTensor::from_planes(3, 700, &planes, encoding, Coupling::Tied, Scales::tensor(1.0))
                .expect("planes");
        let before = tensor.clone();
        let edits: Vec<Edit> = (0..900)
            .map(|i| Edit {
                plane: i % 2,
                row: i % 3,
                col: i * 37 % 700,
                trit: [Trit::N, Trit::Z, Trit::P][i % 7 % 3],
            })
            .collect();
        let mut undo: Vec<Edit> = Vec::new();
        for e in &edits {
            undo.push(Edit { trit: tensor.set(e.plane, e.row, e.col, e.trit).expect("a place"), ..*e });
        }
        let mut batched = before.clone();
        batched.edit(&edits).expect("places");
        assert_eq!(batched, tensor);
        undo.reverse();
        tensor.edit(&undo).expect("places");
        assert_eq!(tensor, before);
        assert_eq!((tensor.data(1), tensor.bytes()), (before.data(1), before.bytes()));
    }
}

//! Properties that hold for every encoding: round trips, slices, edits, the sparsity index.

use half::f16;
use proptest::prelude::*;
use trike_testkit::{Tolerance, is_near};
use trike_trit::{
    BLOCK_TRITS, CHUNK_TRITS, Coupling, Edit, Encoding, Granularity, GroupSize, ScaleValues, Scales, Trit,
    TritTensor,
};

/// A shape, its planes of trits, and the other parts of a tensor.
#[derive(Clone, Debug)]
struct Parts {
    rows: usize,
    cols: usize,
    planes: Vec<Vec<i8>>,
    coupling: Coupling,
    scales: Scales,
}

impl Parts {
    fn tensor(&self, encoding: Encoding) -> TritTensor {
        let planes: Vec<&[i8]> = self.planes.iter().map(Vec::as_slice).collect();
        TritTensor::from_planes(self.rows, self.cols, &planes, encoding, self.coupling, self.scales.clone())
            .expect("valid parts")
    }

    /// The weight by definition, in f64; of this crate's types, only the scales are used.
    fn weight(&self, row: usize, col: usize) -> f64 {
        let granularity = self.scales.granularity();
        let groups = granularity.groups_per_row(self.cols);
        let index = match granularity {
            Granularity::Tensor => 0,
            Granularity::Row => row,
            Granularity::Group(size) => row * groups + col / size.get(),
        };
        let set = granularity.count(self.rows, self.cols).unwrap();
        let mean = self.scales.means().map_or(0.0, |m| f64::from(m.get(index).unwrap()));
        let sum: f64 = (0..self.planes.len())
            .map(|p| {
                let t = f64::from(self.planes[p][row * self.cols + col]);
                match self.coupling {
                    Coupling::Free => t * f64::from(self.scales.values().get(p * set + index).unwrap()),
                    Coupling::Tied => {
                        t * f64::from(self.scales.values().get(index).unwrap()) / 3f64.powi(p as i32)
                    }
                }
            })
            .sum();
        mean + sum
    }
}

fn parts() -> impl Strategy<Value = Parts> {
    let granularity = prop_oneof![
        Just(Granularity::Tensor),
        Just(Granularity::Row),
        (0usize..4).prop_map(|i| Granularity::Group(GroupSize::ALL[i])),
    ];
    let coupling = prop_oneof![Just(Coupling::Free), Just(Coupling::Tied)];
    let cols = prop_oneof![1usize..140, 250usize..270, Just(2047), Just(2048), Just(2085)];
    (
        1usize..5,
        cols,
        1usize..=6,
        granularity,
        coupling,
        any::<bool>(),
        any::<bool>(),
        0u32..=100,
        any::<u64>(),
    )
        .prop_map(|(rows, cols, depth, granularity, coupling, half, means, density, seed)| {
            let mut state = seed;
            let mut next = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u32
            };
            let planes = (0..depth)
                .map(|_| {
                    (0..rows * cols)
                        .map(|_| if next() % 100 < density { (next() % 2) as i8 * 2 - 1 } else { 0 })
                        .collect()
                })
                .collect();
            let mut values = |n: usize| {
                let v: Vec<f32> = (0..n).map(|_| (next() % 4000) as f32 / 1024.0 - 1.5).collect();
                if half {
                    ScaleValues::F16(v.into_iter().map(f16::from_f32).collect())
                } else {
                    ScaleValues::F32(v)
                }
            };
            let set = granularity.count(rows, cols).unwrap();
            let scales = values(if coupling == Coupling::Free { set * depth } else { set });
            let means = means.then(|| values(set));
            Parts { rows, cols, planes, coupling, scales: Scales::new(granularity, scales, means) }
        })
}

/// Compares every trit and count of a tensor with the plain list.
fn assert_is(tensor: &TritTensor, parts: &Parts) {
    for (plane, want) in parts.planes.iter().enumerate() {
        let sparsity = tensor.sparsity(plane).unwrap();
        let mut zeros = 0;
        for (row, want) in want.chunks_exact(parts.cols).enumerate() {
            let view = tensor.row(plane, row).unwrap();
            assert!(view.iter().map(Trit::value).eq(want.iter().copied()), "{}", tensor.encoding());
            let mut read = vec![9; parts.cols];
            tensor.read_row(plane, row, &mut read).unwrap();
            assert_eq!(read, want);
            for (col, &t) in want.iter().enumerate() {
                assert_eq!(tensor.get(plane, row, col).unwrap().value(), t);
            }
            let row_zeros = want.iter().filter(|&&t| t == 0).count();
            zeros += row_zeros as u64;
            assert_eq!(sparsity.row_zeros(row), Some(row_zeros as u32));
            for (chunk, trits) in want.chunks(CHUNK_TRITS).enumerate() {
                let bits = trits
                    .chunks(BLOCK_TRITS)
                    .enumerate()
                    .fold(0u64, |bits, (i, block)| bits | u64::from(block.iter().any(|&t| t != 0)) << i);
                assert_eq!(sparsity.chunk(row, chunk), Some(bits), "{} row {row}", tensor.encoding());
            }
        }
        assert_eq!(sparsity.zeros(), zeros);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_pair_of_encodings_converts_without_loss(parts in parts()) {
        for from in Encoding::ALL {
            let tensor = parts.tensor(from);
            assert_is(&tensor, &parts);
            for to in Encoding::ALL {
                let other = tensor.to_encoding(to).unwrap();
                prop_assert_eq!(other.encoding(), to);
                assert_is(&other, &parts);
                prop_assert_eq!(&other, &parts.tensor(to));
                prop_assert_eq!(&other.to_encoding(from).unwrap(), &tensor);
            }
        }
    }

    #[test]
    fn raw_parts_go_back_into_the_constructor(parts in parts()) {
        for encoding in Encoding::ALL {
            let tensor = parts.tensor(encoding);
            let data = (0..tensor.depth()).map(|p| tensor.data(p).unwrap().into_owned()).collect();
            let again = TritTensor::new(
                parts.rows, parts.cols, data, parts.coupling, tensor.scales().clone());
            prop_assert_eq!(again.unwrap(), tensor);
        }
    }

    #[test]
    fn weights_are_what_the_definition_says(parts in parts()) {
        for encoding in Encoding::ALL {
            let tensor = parts.tensor(encoding);
            let all = tensor.dequantize();
            let mut row = vec![f32::NAN; parts.cols];
            for r in 0..parts.rows {
                tensor.dequantize_row(r, &mut row).unwrap();
                for c in 0..parts.cols {
                    let want = parts.weight(r, c);
                    prop_assert!(is_near(f64::from(row[c]), want, Tolerance::Abs(1e-5)), "{} {}", row[c], want);
                    prop_assert_eq!(all[r * parts.cols + c].to_bits(), row[c].to_bits());
                }
            }
        }
    }

    #[test]
    fn slices_at_every_offset(parts in parts(), len in 0usize..200) {
        for encoding in Encoding::ALL {
            let tensor = parts.tensor(encoding);
            let view = tensor.row(0, parts.rows - 1).unwrap();
            let want = &parts.planes[0][(parts.rows - 1) * parts.cols..];
            for start in 0..=64 {
                let mut out = vec![9; len];
                let fits = start + len <= parts.cols;
                prop_assert_eq!(view.read(start, &mut out).is_ok(), fits);
                if fits {
                    prop_assert_eq!(&out[..], &want[start..start + len]);
                }
            }
        }
    }

    #[test]
    fn edits_keep_the_tensor_and_its_index_true(
        mut parts in parts(),
        places in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), -1i8..=1), 1..60),
    ) {
        let edits: Vec<Edit> = places.iter().map(|&(plane, row, col, trit)| Edit {
            plane: plane as usize % parts.planes.len(),
            row: row as usize % parts.rows,
            col: col as usize % parts.cols,
            trit: Trit::from_value(trit).unwrap(),
        }).collect();
        let before = parts.clone();
        for e in &edits {
            parts.planes[e.plane][e.row * parts.cols + e.col] = e.trit.value();
        }
        for encoding in Encoding::ALL {
            let mut one_by_one = before.tensor(encoding);
            for e in &edits {
                let old = one_by_one.get(e.plane, e.row, e.col).unwrap();
                prop_assert_eq!(one_by_one.set(e.plane, e.row, e.col, e.trit).unwrap(), old);
            }
            assert_is(&one_by_one, &parts);
            let mut batched = before.tensor(encoding);
            batched.edit(&edits).unwrap();
            prop_assert_eq!(&batched, &one_by_one);
            prop_assert_eq!(&batched, &parts.tensor(encoding));

            let mut beyond = edits.clone();
            beyond.push(Edit { plane: 0, row: parts.rows, col: 0, trit: Trit::P });
            prop_assert!(batched.edit(&beyond).is_err());
            prop_assert_eq!(&batched, &one_by_one);
        }
    }

    #[test]
    fn selected_rows_carry_their_scales(parts in parts(), seed in any::<u32>()) {
        let rows: Vec<usize> = (0..parts.rows + 1).map(|i| (i * 7 + seed as usize) % parts.rows).collect();
        for encoding in Encoding::ALL {
            let all = parts.tensor(encoding).dequantize();
            let some = parts.tensor(encoding).select_rows(&rows).unwrap();
            let want: Vec<f32> =
                rows.iter().flat_map(|r| all[r * parts.cols..(r + 1) * parts.cols].to_vec()).collect();
            prop_assert_eq!(some.dequantize(), want);
        }
    }
}

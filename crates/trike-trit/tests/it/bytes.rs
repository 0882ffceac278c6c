//! Bits per weight, counted from the buffers.

use half::f16;
use trike_testkit::assert_near;
use trike_trit::{Encoding, Granularity, GroupSize, Scales, TritTensor};

/// `n` pseudo-random trits, of which one in `every` is nonzero.
fn trits(n: usize, every: u64) -> Vec<i8> {
    let mut state = 42u64;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = state >> 33;
            if draw.is_multiple_of(every) { (draw / every % 2) as i8 * 2 - 1 } else { 0 }
        })
        .collect()
}

const ROWS: usize = 256;
const COLS: usize = 4096;

fn packed(every: u64, encoding: Encoding, granularity: Granularity) -> TritTensor {
    let scales = vec![f16::ONE; granularity.count(ROWS, COLS).unwrap()];
    let scales = Scales::new(granularity, scales, None);
    TritTensor::from_trits(ROWS, COLS, &trits(ROWS * COLS, every), encoding, scales).unwrap()
}

#[test]
fn dense_encodings_with_a_half_scale_per_256() {
    let groups = Granularity::Group(GroupSize::G256);
    for (encoding, bar) in [(Encoding::Planes, 2.07), (Encoding::TwoBit, 2.07), (Encoding::Base3, 1.70)] {
        let bits = packed(2, encoding, groups).bits_per_weight();
        assert!(bits <= bar, "{encoding}: {bits} bits a weight");
    }
}

#[test]
fn row_compressed_against_half_floats() {
    for (every, bar) in [(20, 20.0), (100, 80.0)] {
        for granularity in [Granularity::Row, Granularity::Group(GroupSize::G256)] {
            let tensor = packed(every, Encoding::RowCompressed, granularity);
            let zeros = tensor.zeros() as f64 / (ROWS * COLS) as f64;
            assert_near!(zeros, 1.0 - 1.0 / every as f64, abs = 0.002);
            let ratio = 16.0 / tensor.bits_per_weight();
            assert!(ratio >= bar, "{zeros:.3} zeros, {granularity} scales: {ratio:.1}x");
        }
    }
}

#[test]
fn bytes_are_those_of_the_buffers() {
    for encoding in Encoding::ALL {
        let tensor = packed(3, encoding, Granularity::Row);
        assert_eq!(tensor.bytes(), tensor.data(0).unwrap().bytes() + 2 * ROWS);
    }
    let bitmap = packed(2, Encoding::Bitmap, Granularity::Row).bits_per_weight();
    assert!((1.5..1.55).contains(&bitmap), "{bitmap}");
    // The sparsity index: one bit per 32 trits, four bytes per row, and the total.
    let index = packed(2, Encoding::TwoBit, Granularity::Row).sparsity(0).unwrap().bytes();
    assert_eq!(index, ROWS * COLS / 32 / 8 + 4 * ROWS + 8);
}

//! Sparse ternary weights.

use trike_cube::internals::linear::sparse::{form_of, list, map};
use trike_cube::linear::{MAX_SPARSE_COLS, SparseForm, SparseLayout};
use trike_testkit::Rng;
use trike_trit::{Encoding, Scales, TritTensor};

#[test]
fn nonzeros_are_listed_in_order() {
    let trits = [0, 1, 0, -1, 0, 0, 0, 0, -1];
    let tensor =
        TritTensor::from_trits(3, 3, &trits, Encoding::TwoBit, Scales::tensor(0.5)).expect("a tensor");
    let packed = list(&tensor).expect("packed");
    assert_eq!(packed.offsets, [0, 1, 2, 3]);
    assert_eq!(packed.entries, [2 | 1 << 16, 5]);
    let form = form_of(&tensor).expect("a form");
    assert_eq!((form.nonzeros, form.chunks), (3, 3));
    assert_eq!(form.bytes(), 4 * (packed.offsets.len() + packed.entries.len() + 3));
}

#[test]
fn bits_and_signs_are_where_the_diagram_says() {
    let mut rng = Rng::new(32);
    // The second chunk of every row is zero, the last row is zero.
    let (rows, cols) = (5, 700);
    let mut trits = rng.trits(rows * cols, 0.4);
    trits.chunks_mut(cols).for_each(|row| row[128..256].fill(0));
    trits[4 * cols..].fill(0);
    let tensor =
        TritTensor::from_trits(rows, cols, &trits, Encoding::Bitmap, Scales::tensor(0.5)).expect("a tensor");
    let packed = map(&tensor).expect("packed");
    let mut read = vec![0i8; rows * cols];
    for row in 0..rows {
        let signs = &packed.signs[packed.starts[2 * row + 1] as usize..];
        let mut seen = 0;
        for chunk in packed.starts[2 * row] as usize..packed.starts[2 * row + 2] as usize {
            let header = packed.headers[chunk];
            assert_eq!((header & 0x1_FFFF) as usize, seen, "{row}");
            for (t, word) in packed.bits[4 * chunk..][..4].iter().enumerate() {
                for bit in (0..32).filter(|bit| word >> bit & 1 == 1) {
                    let col = (header >> 17) as usize * 128 + 16 * (bit / 4) + 4 * t + bit % 4;
                    read[row * cols + col] = 1 - 2 * (signs[seen / 32] >> (seen % 32) & 1) as i8;
                    seen += 1;
                }
            }
        }
    }
    assert_eq!(read, trits);
    let form = SparseForm { layout: SparseLayout::Bitmap, ..form_of(&tensor).expect("a form") };
    assert_eq!((form.chunks, packed.headers.len(), packed.bits.len()), (20, 20, 80));
    // Row ends are estimated.
    let words = packed.starts.len() + packed.headers.len() + packed.bits.len() + packed.signs.len();
    assert!(form.bytes().abs_diff(4 * (words + rows)) <= 4 * rows, "{} {words}", form.bytes());
}

#[test]
fn the_layout_follows_the_share_of_zeros() {
    let of = |share: f64| {
        let (rows, cols) = (4096, 4096);
        let nonzeros = (share * (rows * cols) as f64) as usize;
        let chunks = (1.0 - (1.0 - share).powi(128)) * (rows * cols / 128) as f64;
        let layout = SparseLayout::Entries;
        SparseForm { rows, cols, nonzeros, chunks: chunks as usize, layout }
    };
    for (share, layout) in [
        (0.01, SparseLayout::Entries),
        (0.05, SparseLayout::Entries),
        (0.3, SparseLayout::Bitmap),
        (0.6, SparseLayout::Bitmap),
    ] {
        assert_eq!(of(share).predicted(), layout, "{share}");
    }
    // Only bitmaps support more columns.
    let wide = SparseForm { cols: MAX_SPARSE_COLS + 1, ..of(0.01) };
    assert_eq!(wide.predicted(), SparseLayout::Bitmap);
    // The sizes in the documentation: bitmaps are smaller from about 8 % of nonzeros on, and smaller than two bits up to about 70
    // %.
    let bytes = |share, layout| SparseForm { layout, ..of(share) }.bytes();
    assert!(bytes(0.08, SparseLayout::Entries) < bytes(0.08, SparseLayout::Bitmap));
    assert!(bytes(0.09, SparseLayout::Entries) > bytes(0.09, SparseLayout::Bitmap));
    assert!(bytes(0.7, SparseLayout::Bitmap) < 4096 * 4096 / 4);
}

//! Every kind of invalid tensor, and the limits of every index.

use trike_trit::{
    Coupling, Encoding, Granularity, GroupSize, MAX_DEPTH, ScaleValues, Scales, Trit, TritData, TritError,
    TritTensor,
};

fn one_row(cols: usize, data: TritData) -> Result<TritTensor, TritError> {
    TritTensor::new(1, cols, vec![data], Coupling::Free, Scales::tensor(1.0))
}

fn planes(pos: u64, neg: u64) -> TritData {
    TritData::Planes { pos: vec![pos], neg: vec![neg] }
}

#[test]
fn planes_are_disjoint_and_end_clean() {
    assert!(one_row(4, planes(0b1001, 0b0110)).is_ok());
    assert_eq!(
        one_row(4, planes(0b1001, 0b0001)).unwrap_err(),
        TritError::BothBits { plane: 0, row: 0, word: 0 }
    );
    assert!(one_row(64, planes(1 << 63, 0)).is_ok());
    for dirty in [planes(0b1_0000, 0), planes(0, 1 << 63)] {
        assert_eq!(one_row(4, dirty).unwrap_err(), TritError::NonzeroPadding { plane: 0, row: 0 });
    }
}

#[test]
fn two_bit_codes_and_tail() {
    let clean = 0x5555_5555_5555_5555u64;
    assert!(one_row(32, TritData::TwoBit(vec![clean])).is_ok());
    let error = one_row(32, TritData::TwoBit(vec![clean | 0b11 << 14])).unwrap_err();
    assert_eq!(error, TritError::Code { plane: 0, row: 0, col: 7, code: 3, encoding: Encoding::TwoBit });
    // Column 4 of a row of four: any code but 1 is invalid padding, including a zero word.
    for dirty in [0, clean ^ 1 << 8, clean ^ 0b11 << 8] {
        assert_eq!(
            one_row(4, TritData::TwoBit(vec![dirty])).unwrap_err(),
            TritError::NonzeroPadding { plane: 0, row: 0 }
        );
    }
}

#[test]
fn base3_bytes_and_tail() {
    assert!(one_row(5, TritData::Base3(vec![242])).is_ok());
    for byte in [243, 255] {
        let error = one_row(5, TritData::Base3(vec![byte])).unwrap_err();
        assert_eq!(
            error,
            TritError::Code { plane: 0, row: 0, col: 0, code: byte, encoding: Encoding::Base3 }
        );
    }
    // The row `+ 0 - +` of the documented layout; then the same with a nonzero fifth digit.
    let tensor = one_row(4, TritData::Base3(vec![140])).unwrap();
    assert_eq!(tensor.dequantize(), [1.0, 0.0, -1.0, 1.0]);
    assert_eq!(
        one_row(4, TritData::Base3(vec![140 + 81])).unwrap_err(),
        TritError::NonzeroPadding { plane: 0, row: 0 }
    );
}

#[test]
fn the_drawn_row_in_every_encoding() {
    let drawn = [
        planes(0b1001, 0b0100),
        TritData::TwoBit(vec![0x5555_5555_5555_5500 | 0b10_00_01_10]),
        TritData::Base3(vec![140]),
        TritData::Bitmap { nonzero: vec![0b1101], offsets: vec![0, 1], negative: vec![0b010] },
        TritData::RowCompressed { offsets: vec![0, 3], entries: vec![0x00, 0x81, 0x00] },
    ];
    for (data, encoding) in drawn.into_iter().zip(Encoding::ALL) {
        let packed = TritTensor::from_trits(1, 4, &[1, 0, -1, 1], encoding, Scales::tensor(1.0)).unwrap();
        assert_eq!(packed.data(0).as_deref(), Some(&data));
        assert_eq!(one_row(4, data).unwrap().dequantize(), [1.0, 0.0, -1.0, 1.0]);
    }
}

#[test]
fn bitmap_signs_match_the_nonzeros() {
    let bitmap = |nonzero, offsets: &[u32], negative: &[u64]| {
        let data = TritData::Bitmap {
            nonzero: vec![nonzero],
            offsets: offsets.to_vec(),
            negative: negative.to_vec(),
        };
        one_row(4, data)
    };
    assert!(bitmap(0b1101, &[0, 1], &[0b101]).is_ok());
    assert!(bitmap(0, &[0, 0], &[]).is_ok());
    assert!(matches!(bitmap(0b1_0000, &[0, 1], &[0]), Err(TritError::NonzeroPadding { .. })));
    assert!(matches!(bitmap(0b1101, &[0, 1], &[0b1000]), Err(TritError::NonzeroPadding { .. })));
    assert!(matches!(bitmap(0b1101, &[0, 2], &[0, 0]), Err(TritError::Offset { expected: 1, got: 2, .. })));
    assert!(matches!(bitmap(0b1101, &[0, 1], &[]), Err(TritError::Offset { .. })));
    assert!(matches!(bitmap(0, &[1, 1], &[0]), Err(TritError::Offset { .. })));
    assert!(matches!(bitmap(0, &[0], &[]), Err(TritError::Length { what: "row offsets", .. })));
}

#[test]
fn row_compressed_has_one_way_to_write_a_row() {
    let row = |entries: &[u8]| {
        let offsets = vec![0, entries.len() as u32];
        one_row(300, TritData::RowCompressed { offsets, entries: entries.to_vec() })
    };
    assert_eq!(row(&[127, 126]).unwrap().get(0, 0, 253), Ok(Trit::P));
    assert_eq!(row(&[127, 127, 45 | 0x80]).unwrap().get(0, 0, 299), Ok(Trit::N));
    assert!(matches!(row(&[127, 127, 46]), Err(TritError::NonzeroPadding { .. })));
    assert!(matches!(row(&[5, 127]), Err(TritError::NonzeroPadding { .. })));
    assert!(matches!(row(&[5, 255, 5]), Err(TritError::Code { code: 255, col: 6, .. })));
    let falling = TritData::RowCompressed { offsets: vec![0, 2, 1], entries: vec![0, 0] };
    let error = TritTensor::new(2, 9, vec![falling], Coupling::Free, Scales::tensor(1.0)).unwrap_err();
    assert_eq!(error, TritError::Offset { plane: 0, row: 2, expected: 2, got: 1 });
}

#[test]
fn lengths_depth_and_encodings() {
    for (words, ok) in [(1, false), (2, true), (3, false)] {
        let data = TritData::TwoBit(vec![0x5555_5555_5555_5555; words]);
        assert_eq!(one_row(33, data).is_ok(), ok);
    }
    for (depth, ok) in [(0, false), (1, true), (MAX_DEPTH, true), (MAX_DEPTH + 1, false)] {
        let made = TritTensor::new(1, 4, vec![planes(0, 0); depth], Coupling::Tied, Scales::tensor(1.0));
        assert_eq!(made.is_ok(), ok);
    }
    let mixed = vec![planes(0, 0), TritData::Base3(vec![121])];
    let error = TritTensor::new(1, 4, mixed, Coupling::Tied, Scales::tensor(1.0)).unwrap_err();
    assert!(matches!(error, TritError::MixedEncodings { plane: 1, .. }), "{error}");
    for (rows, cols) in [(0, 4), (4, 0), (usize::MAX, 2), (1 << 40, 1), (1, 1 << 33)] {
        let error =
            TritTensor::from_trits(rows, cols, &[], Encoding::Planes, Scales::tensor(1.0)).unwrap_err();
        assert_eq!(error, TritError::Shape { rows, cols });
    }
    let short = TritTensor::from_trits(2, 2, &[0; 3], Encoding::Planes, Scales::tensor(1.0)).unwrap_err();
    assert_eq!(short, TritError::Length { what: "trits", expected: 4, got: 3 });
    let two = TritTensor::from_trits(1, 2, &[0, 2], Encoding::Planes, Scales::tensor(1.0)).unwrap_err();
    assert_eq!(two, TritError::Value { index: 1, value: 2 });
}

#[test]
fn scales_are_counted_and_finite() {
    let make = |granularity, values: Vec<f32>, means: Option<Vec<f32>>, coupling| {
        let scales = Scales::new(granularity, values, means.map(ScaleValues::F32));
        TritTensor::from_planes(2, 70, &[&[0; 140], &[1; 140]], Encoding::TwoBit, coupling, scales)
    };
    let groups = Granularity::Group(GroupSize::G32);
    // Two rows of three groups; twice as many scales with free planes.
    for (granularity, coupling, need) in [
        (Granularity::Tensor, Coupling::Tied, 1),
        (Granularity::Tensor, Coupling::Free, 2),
        (Granularity::Row, Coupling::Tied, 2),
        (Granularity::Row, Coupling::Free, 4),
        (groups, Coupling::Tied, 6),
        (groups, Coupling::Free, 12),
    ] {
        for n in need - 1..=need + 1 {
            assert_eq!(make(granularity, vec![1.0; n], None, coupling).is_ok(), n == need);
        }
    }
    for n in 5..=7 {
        let made = make(groups, vec![1.0; 12], Some(vec![0.0; n]), Coupling::Free);
        assert_eq!(made.is_ok(), n == 6, "means have no plane axis");
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = make(Granularity::Row, vec![1.0, bad], None, Coupling::Tied).unwrap_err();
        assert!(matches!(error, TritError::NonFinite { what: "scale", index: 1, .. }), "{error}");
        let means = Some(vec![bad]);
        let error = make(Granularity::Tensor, vec![1.0], means, Coupling::Tied).unwrap_err();
        assert!(matches!(error, TritError::NonFinite { what: "mean", index: 0, .. }), "{error}");
    }
}

#[test]
fn indices_at_their_limits() {
    for encoding in Encoding::ALL {
        let mut tensor = TritTensor::from_trits(3, 5, &[1; 15], encoding, Scales::tensor(1.0)).unwrap();
        let out = |what, index, limit| Err(TritError::OutOfRange { what, index, limit });
        assert_eq!(tensor.get(0, 2, 4), Ok(Trit::P));
        assert_eq!(tensor.get(1, 2, 4), out("plane", 1, 1));
        assert_eq!(tensor.get(0, 3, 4), out("row", 3, 3));
        assert_eq!(tensor.get(0, 2, 5), out("column", 5, 5));
        assert_eq!(tensor.set(0, 2, 5, Trit::Z), out("column", 5, 5));
        assert_eq!(tensor.row(0, 2).unwrap().get(5), None);
        assert!(tensor.row(0, 3).is_err() && tensor.row(1, 0).is_err());
        assert!(tensor.scale(0, 2, 0).is_ok() && tensor.scale(0, 2, 1).is_err());
        assert!(tensor.mean(2, 0).is_ok() && tensor.mean(3, 0).is_err());
        assert!(tensor.read_row(0, 0, &mut [0; 4]).is_err() && tensor.read_row(0, 0, &mut [0; 5]).is_ok());
        assert!(tensor.dequantize_row(3, &mut [0.0; 5]).is_err());
        assert!(tensor.dequantize_row(2, &mut [0.0; 6]).is_err());
        assert!(tensor.select_rows(&[3]).is_err() && tensor.select_rows(&[]).is_err());
        assert!(tensor.data(1).is_none() && tensor.sparsity(1).is_none());
        let sparsity = tensor.sparsity(0).unwrap();
        assert!(sparsity.chunk(2, 1).is_none() && sparsity.chunk(3, 0).is_none());
        assert!(sparsity.row_zeros(3).is_none());
    }
}

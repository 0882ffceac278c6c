//! Weights that are not ternary.

use trike_cube::internals::linear::dense::{halves, pack};
use trike_cube::linear::{DenseForm, DenseKind};

#[test]
fn weights_lie_in_words_as_the_docs_say() {
    let form = |kind| DenseForm { rows: 2, cols: 3, kind, group: 3 };
    let f32s = pack(&form(DenseKind::F32), &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], |&[v]| v.to_bits());
    assert_eq!((f32s.len(), f32s[2], f32s[3], f32s[16]), (32, 3f32.to_bits(), 0, 4f32.to_bits()));
    let bytes = pack(&form(DenseKind::Int8), &[1i8, -1, 3, 4, 5, 6], |v: &[i8; 4]| {
        u32::from_le_bytes(v.map(|v| v as u8))
    });
    assert_eq!((bytes.len(), bytes[0], bytes[4]), (8, 0x0003_FF01, 0x0006_0504));
    assert_eq!(halves([0x1234, 0xABCD]), 0xABCD_1234);
    assert_eq!(form(DenseKind::Int8).bytes(), 4 * (8 + 2));
    assert_eq!(form(DenseKind::Bf16).bytes(), 4 * 16);
}

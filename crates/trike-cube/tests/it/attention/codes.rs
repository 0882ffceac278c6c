//! Caches in int8.

use trike_cube::internals::attention::{KvCodesForm, UNITS, values_of};

#[test]
fn words_have_the_codes_of_a_head_in_their_order() {
    let words = [u32::from_le_bytes([0, 127, 128, 129]), u32::from_le_bytes([255, 1, 128, 128])];
    let values = values_of(&words, [0.5, 2.0].into_iter(), 4);
    assert_eq!(values, [-64.0, -0.5, 0.0, 0.5, 254.0, -254.0, 0.0, 0.0]);
}

#[test]
fn groups_of_units_fill_a_cube() {
    for head_dim in (4..=1024).step_by(4) {
        let lanes = KvCodesForm { head_dim, pairing: None }.lanes();
        assert!(UNITS.is_multiple_of(lanes) && lanes <= head_dim, "{head_dim}");
    }
}

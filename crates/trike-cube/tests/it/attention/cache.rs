//! Offsets of caches in one allocation.

use trike_cube::attention::{CacheShape, KvPrecision};

#[test]
fn caches_in_one_allocation_are_aligned() {
    for head_dim in [4, 8, 12, 20, 64, 80, 128] {
        for alignment in [1, 32, 256] {
            let shape = CacheShape { kv_heads: 3, head_dim, capacity: 7, precision: KvPrecision::Int8 };
            let unit = shape.unit(alignment);
            let stride = shape.elements().expect("small").next_multiple_of(unit);
            let slots = stride / head_dim;
            // Whole slots: one byte per code, and eight for the scales of a slot.
            assert_eq!(slots * head_dim, stride, "{head_dim} {alignment}");
            assert!(stride.is_multiple_of(alignment) && (8 * slots).is_multiple_of(alignment));
            let halves = CacheShape { precision: KvPrecision::F16, ..shape }.unit(alignment);
            assert!((2 * halves).is_multiple_of(alignment), "{alignment}");
        }
    }
}

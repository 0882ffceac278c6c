//! Host-side planning: launches fit the smallest device, and mismatches are refused.

mod table;

use trike_cube::Capabilities;
use trike_cube::attention::AttentionSpec;
use trike_cube::grad::Groups;
use trike_cube::internals::grad::{SUM_UNITS, attention, each, per_cube};

#[test]
fn launches_fit_the_smallest_device() {
    let device = Capabilities::smallest();
    for settings in [each(1 << 24, 5), Ok(per_cube(1 << 20, 4, 3 * SUM_UNITS)), Ok(per_cube(9, 2, 2048))] {
        settings.expect("in range").check("test", &device).expect("within the limits");
    }
    for head_dim in [1, 64, 128, 200] {
        let spec = AttentionSpec { heads: 8, kv_heads: 2, head_dim, scale: 1.0, window: None };
        let form = attention::AttentionGradForm::new(&spec);
        let shape = attention::AttentionGradShape { form, tokens: 4096, kv_heads: 2, window: 7 };
        let backward = attention::settings(&shape, 4096, 2, 2, 8);
        backward.check("attention", &device).expect("within the limits");
    }
    each(0, 1).expect_err("nothing to do");
    each(u32::MAX as usize, 1).expect_err("indices would wrap around");
}

#[test]
fn groups_are_counted() {
    let groups = Groups { rows: 3, cols: 75, len: 32 };
    assert_eq!((groups.count(), Groups::whole(75).count()), (9, 1));
    groups.validate(225).expect("they fit");
    groups.validate(224).expect_err("too few elements");
    for len in [0, 76] {
        Groups { len, ..groups }.validate(225).expect_err("no group of a row");
    }
}

//! Messages of errors.

use trike_cube::CubeError;
use trike_cube::internals::{check_range, unsupported};

#[test]
fn messages_name_the_field_the_value_the_limit_and_the_remedy() {
    let message = |error: CubeError| error.to_string();
    let refused = check_range("head_dim", 32, 128, 160).expect_err("over the limit");
    assert_eq!(message(refused), "head_dim: expected 32 to 128, got 160");
    let refused = check_range("window", 1, usize::MAX, 0).expect_err("below the limit");
    assert_eq!(message(refused), "window: expected at least 1, got 0");
    let refused = check_range("splits", 1, 1, 2).expect_err("over the limit");
    assert_eq!(message(refused), "splits: expected 1, got 2");
    let differ = CubeError::Mismatch {
        what: "columns of part 1 of a packed matrix".to_owned(),
        expected: "64 as in part 0".to_owned(),
        got: "65".to_owned(),
        remedy: "pack the tensors as separate matrices",
    };
    assert_eq!(
        message(differ),
        "columns of part 1 of a packed matrix: expected 64 as in part 0, got 65; pack the tensors as separate matrices"
    );
    let refused = unsupported::<()>("base-3 layout", "2 tied trit planes", "use the two-bit layout");
    assert_eq!(
        message(refused.expect_err("refused")),
        "base-3 layout: no support for 2 tied trit planes; use the two-bit layout"
    );
}

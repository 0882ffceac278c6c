//! Float comparisons of tests: a tolerance is checked by the macros of `trike-testkit`, not by hand.
//!
//! A comparison by hand prints only what its author thought of, and many accept a NaN: `f64::max` drops it. Examples in the
//! docs are left alone: their readers do not have `trike-testkit`.

use crate::source;

/// The crate that compares floats for the others.
const EXEMPT: &str = "crates/trike-testkit/";

/// The tolerances in the test code of a Rust file that are checked by hand.
pub(crate) fn findings(path: &str, text: &str) -> Vec<String> {
    if path.starts_with(EXEMPT) {
        return Vec::new();
    }
    let lines = hand_written(&test_code(path, text));
    let finding = |line: usize| {
        format!(
            "{path}:{line}: a float tolerance checked by hand; use `assert_near!` or `assert_all_near!` of \
             trike-testkit, which refuse NaN and print both values"
        )
    };
    lines.into_iter().map(finding).collect()
}

/// The code of a file that only tests compile, without comments and strings; every other line is empty.
fn test_code(path: &str, text: &str) -> String {
    let code = source::code(text);
    let name = path.rsplit('/').next().unwrap_or(path);
    let in_folder = path.starts_with("tests/") || path.contains("/tests/");
    if in_folder || name == "tests.rs" || name.ends_with("_tests.rs") {
        return code;
    }
    let (kept, _) = source::without_tests(&code);
    let lines = code.lines().zip(kept.lines());
    lines.map(|(line, kept)| if line == kept { "\n".to_owned() } else { format!("{line}\n") }).collect()
}

/// The lines, counted from 1, where a magnitude is compared with a tolerance.
///
/// That is a magnitude below a literal with a negative exponent, or the magnitude of an expression, such as a difference, below
/// anything but an integer. The magnitude of a variable below a threshold, as in `if weight.abs() < threshold`, is none.
fn hand_written(code: &str) -> Vec<usize> {
    const MAGNITUDE: &str = ".abs()";
    let is_one = |at: usize| {
        let (of, rest) = (code[..at].trim_end(), code[at + MAGNITUDE.len()..].trim_start());
        let Some(bound) = rest.strip_prefix('<') else { return false };
        let bound = bound.strip_prefix('=').unwrap_or(bound).trim_start();
        is_small(bound) || (of.ends_with([')', '?']) && !is_integer(bound))
    };
    let places = code.match_indices(MAGNITUDE).map(|(at, _)| at).filter(|at| is_one(*at));
    places.map(|at| 1 + code[..at].matches('\n').count()).collect()
}

/// The number that `code` starts with, up to the sign of an exponent.
fn number(code: &str) -> &str {
    let end = code.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.').unwrap_or(code.len());
    if code.starts_with(|c: char| c.is_ascii_digit()) { &code[..end] } else { "" }
}

/// Whether `code` starts with a literal such as `1e-6`.
fn is_small(code: &str) -> bool {
    let number = number(code);
    number.ends_with(['e', 'E']) && code[number.len()..].starts_with('-')
}

/// Whether `code` starts with a literal such as `3` or `3i32`.
fn is_integer(code: &str) -> bool {
    let number = number(code);
    let suffix = number.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
    !number.is_empty() && (suffix.is_empty() || suffix.starts_with(['i', 'u']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_checked_by_hand_are_found() {
        for code in [
            "assert!((got - want).abs() < 1e-6);",
            "assert!((got - want).abs() <= bound, \"message\");",
            "assert!((got - want).abs()<0.05);",
            "let close = (f64::from(got) - want).abs() <= 1e-5 * want.abs();",
            "assert!(similarity(&a, &b)?.abs() < close);",
            "assert!(sum.abs() < 2.5e-7 && out[1].abs() <= 1_0E-3);",
        ] {
            let count = if code.contains("&&") { 2 } else { 1 };
            assert_eq!(hand_written(code), vec![1; count], "{code}");
        }
        // As rustfmt breaks a long one.
        assert_eq!(hand_written("assert!(\n    (a - b)\n        .abs()\n        < 1e-6\n);"), [3]);
    }

    #[test]
    fn other_comparisons_are_not() {
        for code in [
            "assert_near!(got, want, abs = 1e-6);",
            "let want = if weight.abs() < 0.5 { 0.0 } else { mean };",
            "assert!(x.iter().all(|v| v.abs() < 3.0));",
            "assert!(row[i].abs() < threshold);",
            "assert!((a - b).abs() <= 1);",
            "assert!((a - b).abs() < 3i32);",
            "assert!((a - b).abs() > 1e-3);",
            "let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));",
            "let bound = 1e-5 * want.abs().max(1.0);",
        ] {
            assert_eq!(hand_written(code), [0; 0], "{code}");
        }
    }

    #[test]
    fn tests_are_searched_and_nothing_else() {
        let line = "assert!((a - b).abs() < 1e-6);";
        let inline =
            format!("fn f() {{ {line} }}\n\n#[cfg(test)]\nmod tests {{\n  fn g() {{ {line} }}\n}}\n");
        let message = "a/src/b.rs:5: a float tolerance checked by hand; use `assert_near!` or \
                       `assert_all_near!` of trike-testkit, which refuse NaN and print both values";
        assert_eq!(findings("a/src/b.rs", &inline), [message]);
        for (path, text, count) in [
            ("a/src/b.rs", line.to_owned(), 0),
            ("a/tests/b.rs", line.to_owned(), 1),
            ("tests/b.rs", line.to_owned(), 1),
            ("a/src/tests.rs", line.to_owned(), 1),
            ("a/src/graph_tests.rs", line.to_owned(), 1),
            ("a/tests/b.rs", format!("// {line}\nf(\"{line}\");"), 0),
            ("a/src/b.rs", format!("  /// {line}\n//! {line}"), 0),
            ("crates/trike-testkit/src/compare.rs", inline, 0),
        ] {
            assert_eq!(findings(path, &text).len(), count, "{path}: {text}");
        }
    }
}

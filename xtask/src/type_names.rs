//! A public type of the published crates has a name of its own: a reader who meets it anywhere knows which type it is.

use std::collections::BTreeMap;

/// The public types that a file defines, outside of its tests.
pub(crate) fn of(path: &str, text: &str) -> Vec<String> {
    let is_published = path.starts_with("crates/") && path.contains("/src/") && !path.ends_with("/tests.rs");
    if !is_published || path.starts_with("crates/trike-testkit/") {
        return Vec::new();
    }
    let own = text.split("\nmod tests {").next().unwrap_or_default();
    let name = |line: &str| {
        let rest = ["struct ", "enum ", "trait ", "type "]
            .iter()
            .find_map(|kind| line.trim_start().strip_prefix("pub ")?.strip_prefix(kind))?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        Some(rest[..end].to_owned())
    };
    own.lines().filter_map(name).collect()
}

/// What is wrong with the names of all files, by file.
pub(crate) fn findings(all: &[(String, String)]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, path) in all {
        let paths = places.entry(name).or_default();
        if !paths.contains(&path.as_str()) {
            paths.push(path);
        }
    }
    let mut findings = Vec::new();
    for (name, paths) in &places {
        if paths.len() > 1 {
            findings
                .push(format!("the public type {name} is defined in {}: one name each", paths.join(" and ")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_one_type() {
        let text = "//! Docs.\npub struct Tape<E> {\n    pub enum Inner;\n}\npub(crate) struct Own;\n\nmod tests {\npub struct T;";
        assert_eq!(of("crates/a/src/a.rs", text), ["Tape", "Inner"]);
        for path in ["tools/a/src/a.rs", "crates/a/tests/it/a.rs", "crates/a/src/tests.rs"] {
            assert_eq!(of(path, text), [""; 0], "{path}");
        }
        let named = |name: &str, path: &str| (name.to_owned(), path.to_owned());
        let mut all = vec![named("Var", "a.rs"), named("Tensor", "b.rs")];
        all.extend([named("Tape", "a.rs"), named("Tape", "a.rs")]);
        assert_eq!(findings(&all), [""; 0], "one file");
        all.push(named("Tape", "b.rs"));
        assert_eq!(findings(&all), ["the public type Tape is defined in a.rs and b.rs: one name each"]);
    }
}

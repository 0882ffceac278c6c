//! Imports, definitions and used paths of a module, from its tokens.

use std::collections::{BTreeMap, BTreeSet};

/// The `use` declarations and paths of a module.
#[derive(Default)]
pub(crate) struct Module {
    /// Local name -> imported path, including re-exports.
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// Paths that end with `::*`.
    pub(crate) globs: Vec<Vec<String>>,
    /// Defined items.
    pub(crate) defines: BTreeSet<String>,
    /// Used paths: imports that are not re-exported, and paths from `crate`, `super` and `self`.
    pub(crate) names: Vec<Vec<String>>,
}

/// Keywords that are followed by an item's name.
const ITEMS: &[&str] = &["struct", "enum", "union", "trait", "type", "fn", "const", "static"];

impl Module {
    /// Parses code without comments, strings and tests.
    pub(crate) fn new(code: &str) -> Self {
        let words = words(code);
        let mut module = Self::default();
        let mut at = 0;
        while at < words.len() {
            let word = words[at].as_str();
            let before = at.checked_sub(1).map_or("", |i| words[i].as_str());
            let next = |ahead: usize| words.get(at + ahead).map_or("", String::as_str);
            at = match word {
                // `use<'a>` in `impl Trait + use<'a>` is not a declaration.
                "use" if next(1) != "<" => module.declaration(&words, at + 1, matches!(before, "pub" | ")")),
                "crate" | "super" | "self" if next(1) == "::" && before != "in" => {
                    let mut path = vec![word.to_owned()];
                    let mut i = at + 1;
                    while words.get(i).is_some_and(|w| w == "::")
                        && words.get(i + 1).is_some_and(|w| is_name(w))
                    {
                        path.push(words[i + 1].clone());
                        i += 2;
                    }
                    module.names.push(path);
                    i
                }
                "!" if before == "macro_rules" => {
                    module.defines.insert(next(1).to_owned());
                    at + 1
                }
                _ => {
                    if ITEMS.contains(&word) && is_name(next(1)) {
                        module.defines.insert(next(1).to_owned());
                    }
                    at + 1
                }
            };
        }
        module
    }

    /// Parses the tree of a `use` declaration from `at`, and returns its end.
    fn declaration(&mut self, words: &[String], at: usize, is_public: bool) -> usize {
        let end = words[at..].iter().position(|w| w == ";").map_or(words.len(), |len| at + len);
        let mut prefixes: Vec<Vec<String>> = vec![Vec::new()];
        let (mut path, mut alias): (Vec<String>, Option<String>) = (Vec::new(), None);
        let mut i = at;
        while i <= end {
            let word = if i == end { "," } else { words[i].as_str() };
            match word {
                "{" => prefixes.push(std::mem::take(&mut path)),
                "," | "}" => {
                    let full: Vec<String> = prefixes.iter().flatten().chain(&path).cloned().collect();
                    if !path.is_empty() {
                        self.import(full, alias.take(), is_public);
                    }
                    path.clear();
                    if word == "}" {
                        prefixes.pop();
                    }
                }
                "as" => {
                    alias = words.get(i + 1).cloned();
                    i += 1;
                }
                "::" => {}
                name => path.push(name.to_owned()),
            }
            i += 1;
        }
        end
    }

    fn import(&mut self, mut path: Vec<String>, alias: Option<String>, is_public: bool) {
        let is_glob = path.last().is_some_and(|last| last == "*");
        // `a::{self}` is `a`.
        if is_glob || (path.len() > 1 && path.last().is_some_and(|last| last == "self")) {
            path.pop();
        }
        if is_glob {
            self.globs.push(path.clone());
        } else if let Some(name) = alias.or_else(|| path.last().cloned()) {
            self.imports.insert(name, path.clone());
        }
        if !is_public {
            self.names.push(path);
        }
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits code into identifiers, `::`, and single characters.
fn words(code: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_whitespace() {
            continue;
        }
        let mut word = c.to_string();
        if c.is_alphanumeric() || c == '_' {
            while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                word.push(c);
            }
        } else if c == ':' && chars.next_if_eq(&':').is_some() {
            word.push(':');
        }
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(paths: &[Vec<String>]) -> Vec<String> {
        paths.iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn declarations_are_trees() {
        let module = Module::new(
            "use crate::a::{self, B, c::{D as E, F}, g::*};\npub use h::I;\npub(crate) use super::J;\nuse k;",
        );
        assert_eq!(
            joined(&module.names),
            ["crate::a", "crate::a::B", "crate::a::c::D", "crate::a::c::F", "crate::a::g", "k"]
        );
        assert_eq!(joined(&module.globs), ["crate::a::g"]);
        assert_eq!(module.imports["E"].join("::"), "crate::a::c::D");
        assert_eq!(module.imports["a"].join("::"), "crate::a");
        assert_eq!(module.imports["I"].join("::"), "h::I");
        assert_eq!(module.imports["J"].join("::"), "super::J");
        assert!(!module.imports.contains_key("D"));
    }

    #[test]
    fn paths_and_items_are_read_from_code() {
        let module = Module::new(
            "pub(in crate::x) fn f<T>(a: &crate::y::Z) -> impl Sized + use<T> { super::g::<u8>(self.h) }\n\
             macro_rules! shapes { () => { $crate::s() } }\nconst N: usize = 1;",
        );
        assert_eq!(joined(&module.names), ["crate::y::Z", "super::g", "crate::s"]);
        for name in ["f", "shapes", "N"] {
            assert!(module.defines.contains(name), "{name}");
        }
    }
}

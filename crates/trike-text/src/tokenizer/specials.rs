//! Special tokens by name, and their occurrences in a text.

use std::collections::HashMap;

/// The special tokens of a vocabulary.
#[derive(Clone, Default)]
pub(super) struct SpecialTokens {
    ids: HashMap<Box<str>, u32>,
    /// Distinct lengths in bytes, longest first.
    lengths: Vec<usize>,
    /// Whether a special token starts with this byte; in practice they share one or two first bytes.
    starts: Vec<bool>,
}

/// An occurrence of a special token in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) id: u32,
}

impl SpecialTokens {
    /// Collects tokens; empty ones are skipped, and of two with the same name the first is kept.
    pub(super) fn new<'a>(tokens: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let mut specials = Self { starts: vec![false; 256], ..Self::default() };
        for (token, id) in tokens {
            let Some(&first) = token.as_bytes().first() else { continue };
            specials.ids.entry(token.into()).or_insert(id);
            specials.lengths.push(token.len());
            specials.starts[usize::from(first)] = true;
        }
        specials.lengths.sort_unstable_by(|a, b| b.cmp(a));
        specials.lengths.dedup();
        specials
    }

    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.ids.iter().map(|(token, &id)| (&**token, id))
    }

    /// The first special token in `text` at or after byte `from`; the longest one at that position.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<Found> {
        let bytes = text.as_bytes().get(from..)?;
        let candidates =
            (from..).zip(bytes).filter(|&(_, &b)| self.starts.get(usize::from(b)) == Some(&true));
        candidates.map(|(start, _)| start).find_map(|start| {
            self.lengths.iter().find_map(|len| {
                let id = self.id_of(text.get(start..start + len)?)?;
                Some(Found { start, end: start + len, id })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_and_then_the_longest_is_found() {
        let specials = SpecialTokens::new([("<a>", 1), ("<a>b", 2), ("", 3), ("é<", 4)]);
        let at = |start, end, id| Some(Found { start, end, id });
        assert_eq!(specials.find("x<a>c", 0), at(1, 4, 1));
        assert_eq!(specials.find("x<a>bc<a>", 0), at(1, 5, 2));
        assert_eq!(specials.find("x<a>bc<a>", 5), at(6, 9, 1));
        assert_eq!(specials.find("éé<<a>", 0), at(2, 5, 4));
        assert_eq!(specials.find("<a", 0), None);
        assert_eq!(specials.find("", 0), None);
        assert_eq!(specials.find("<a>", 9), None);
        assert_eq!(specials.iter().count(), 3);
    }
}

//! The merge step: among adjacent symbols whose concatenation is a piece, the pair with the highest-scored piece is
//! merged (the leftmost on ties), until none is left.

use std::{
    cmp::Ordering,
    collections::{BinaryHeap, HashMap},
};

/// A piece that a merge may produce.
#[derive(Clone, Copy)]
pub(super) struct Mergeable {
    pub(super) id: u32,
    pub(super) score: f32,
    pub(super) unused: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Symbol {
    pub(super) start: usize,
    /// Bytes; zero once merged into its left neighbour.
    pub(super) len: usize,
    previous: Option<usize>,
    pub(super) next: Option<usize>,
    frozen: bool,
}

/// A possible merge of two neighbours. The heap orders by highest score, then leftmost position.
#[derive(Clone, Copy)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both; differs once either has changed.
    len: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

pub(super) struct Merger<'a> {
    mergeable: &'a HashMap<Box<str>, Mergeable>,
    text: &'a str,
    pub(super) symbols: Vec<Symbol>,
    agenda: BinaryHeap<Candidate>,
    /// For each unused piece that was formed, the length of its left half.
    pub(super) split_of_unused: HashMap<&'a str, usize>,
}

impl<'a> Merger<'a> {
    /// `frozen` returns the length of the never-merged piece at the start of a text.
    pub(super) fn new(
        mergeable: &'a HashMap<Box<str>, Mergeable>,
        text: &'a str,
        frozen: impl Fn(&str) -> Option<usize>,
    ) -> Self {
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut start = 0;
        while let Some(character) = text[start..].chars().next() {
            let frozen = frozen(&text[start..]);
            let len = frozen.unwrap_or(character.len_utf8());
            let index = symbols.len();
            if let Some(last) = symbols.last_mut() {
                last.next = Some(index);
            }
            let previous = index.checked_sub(1);
            symbols.push(Symbol { start, len, previous, next: None, frozen: frozen.is_some() });
            start += len;
        }
        Self { mergeable, text, symbols, agenda: BinaryHeap::new(), split_of_unused: HashMap::new() }
    }

    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let (a, b) = (self.symbols[left], self.symbols[right]);
        if a.frozen || b.frozen {
            return;
        }
        let len = a.len + b.len;
        let piece = &self.text[a.start..a.start + len];
        if let Some(&Mergeable { score, unused, .. }) = self.mergeable.get(piece) {
            self.agenda.push(Candidate { score, left, right, len });
            if unused {
                self.split_of_unused.insert(piece, a.len);
            }
        }
    }

    pub(super) fn run(&mut self) {
        for right in 1..self.symbols.len() {
            self.consider(Some(right - 1), Some(right));
        }
        while let Some(Candidate { left, right, len, .. }) = self.agenda.pop() {
            let (a, b) = (self.symbols[left], self.symbols[right]);
            if a.len == 0 || b.len == 0 || a.len + b.len != len {
                continue;
            }
            self.symbols[left].len = len;
            self.symbols[left].next = b.next;
            self.symbols[right].len = 0;
            if let Some(next) = b.next {
                self.symbols[next].previous = Some(left);
            }
            self.consider(a.previous, Some(left));
            self.consider(Some(left), b.next);
        }
    }
}

//! tiktoken's merge over a ranked vocabulary: among adjacent symbols whose concatenation is a token, the pair with
//! the lowest rank is merged (the leftmost on ties), until none is left.
//!
//! The `tokenizers` crate ranks *pairs*. The usual conversion lists every split of every token as a merge. Two splits of
//! one token then have different ranks, so the crate prefers the better split where tiktoken prefers
//! the leftmost position. With the tokens `xy`, `yx`, `xyx` and the state `xy x yx`, tiktoken gives `xyx yx` and the
//! list `(x, yx) < (xy, x)` gives `xy xyx`. Whether this occurs with a real vocabulary is hard to determine, and the exact
//! merge is short, so it is implemented here.

use std::{cmp::Reverse, collections::BinaryHeap, collections::HashMap};

use super::{
    TokenizerError,
    limits::{check_token, check_tokens},
};

/// A vocabulary of byte strings; the id of a token is its rank.
#[derive(Clone)]
pub(super) struct Ranks {
    ids: HashMap<Box<[u8]>, u32>,
    /// Bytes of the longest token: longer pairs need no lookup.
    longest: usize,
    single: Box<[u32; 256]>,
}

#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// Zero once merged into its left neighbour.
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

impl Ranks {
    /// Builds the vocabulary from tokens in the order of their ranks.
    pub(super) fn new(tokens: &[Vec<u8>]) -> Result<Self, TokenizerError> {
        check_tokens(tokens.len() as u64)?;
        let mut ids = HashMap::with_capacity(tokens.len());
        let mut longest = 0;
        for (rank, token) in (0u32..).zip(tokens) {
            check_token(token.len())?;
            longest = longest.max(token.len());
            if ids.insert(token.as_slice().into(), rank).is_some() {
                return Err(TokenizerError::malformed(
                    format!("token {rank}"),
                    "bytes different from every other token",
                    format!("{token:?} again"),
                ));
            }
        }
        let mut single = Box::new([0; 256]);
        for (byte, slot) in (0..=255u8).zip(single.iter_mut()) {
            *slot = *ids.get(&[byte][..]).ok_or(TokenizerError::MissingByte { byte })?;
        }
        Ok(Self { ids, longest, single })
    }

    pub(super) fn id_of(&self, token: &[u8]) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Appends the ids of one pre-token.
    pub(super) fn encode(&self, bytes: &[u8], out: &mut Vec<u32>) {
        if let Some(id) = self.id_of(bytes) {
            out.push(id);
            return;
        }
        let count = bytes.len();
        let mut symbols: Vec<Symbol> = (0..count)
            .map(|start| Symbol {
                start,
                len: 1,
                previous: start.checked_sub(1),
                next: Some(start + 1).filter(|&n| n < count),
            })
            .collect();
        let mut agenda = BinaryHeap::new();
        let consider = |agenda: &mut BinaryHeap<_>, symbols: &[Symbol], left, right| {
            let (Some(left), Some(right)) = (left, right) else { return };
            let (a, b): (Symbol, Symbol) = (symbols[left], symbols[right]);
            let len = a.len + b.len;
            if len <= self.longest {
                // Ordered by lowest rank, then leftmost position; the other fields identify the pair.
                let rank = self.id_of(&bytes[a.start..a.start + len]);
                agenda.extend(rank.map(|rank| Reverse((rank, left, right, len))));
            }
        };
        for right in 1..count {
            consider(&mut agenda, &symbols, Some(right - 1), Some(right));
        }
        while let Some(Reverse((_, left, right, len))) = agenda.pop() {
            let (a, b) = (symbols[left], symbols[right]);
            // Skip the candidate if either symbol has changed since.
            if a.len == 0 || b.len == 0 || a.len + b.len != len {
                continue;
            }
            symbols[left].len = len;
            symbols[left].next = b.next;
            symbols[right].len = 0;
            if let Some(next) = b.next {
                symbols[next].previous = Some(left);
            }
            consider(&mut agenda, &symbols, a.previous, Some(left));
            consider(&mut agenda, &symbols, Some(left), b.next);
        }
        for Symbol { start, len, .. } in symbols.into_iter().filter(|s| s.len > 0) {
            match self.id_of(&bytes[start..start + len]) {
                Some(id) => out.push(id),
                // Every longer symbol was found by a lookup, so this is a single byte.
                None => out.extend(bytes[start..start + len].iter().map(|&b| self.single[usize::from(b)])),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::Rng;

    fn ranks(tokens: &[&str]) -> Ranks {
        let bytes = (0..=255u8).map(|b| vec![b]);
        Ranks::new(&bytes.chain(tokens.iter().map(|t| t.as_bytes().to_vec())).collect::<Vec<_>>()).unwrap()
    }

    /// The definition, applied directly.
    fn oracle(ranks: &Ranks, bytes: &[u8]) -> Vec<u32> {
        if let Some(id) = ranks.id_of(bytes) {
            return vec![id];
        }
        let mut parts: Vec<Vec<u8>> = bytes.iter().map(|&b| vec![b]).collect();
        let pair = |p: &[Vec<u8>], i: usize| ranks.id_of(&[&p[i][..], &p[i + 1][..]].concat());
        while let Some((_, i)) =
            (0..parts.len().saturating_sub(1)).filter_map(|i| Some((pair(&parts, i)?, i))).min()
        {
            let right = parts.remove(i + 1);
            parts[i].extend(right);
        }
        parts.iter().map(|p| ranks.id_of(p).unwrap()).collect()
    }

    #[test]
    fn equal_ranks_merge_from_the_left() {
        let r = ranks(&["xy", "yx", "xyx"]);
        let mut ids = Vec::new();
        r.encode(b"xyxyx", &mut ids);
        // xy xy x: the two leftmost pairs first, then xyx needs `xy x`.
        assert_eq!(ids, oracle(&r, b"xyxyx"));
        assert_eq!(ids, [256, 258]);
    }

    #[test]
    fn the_heap_agrees_with_the_rule() {
        let mut rng = Rng::new(3);
        for _ in 0..200 {
            let mut words: Vec<String> = Vec::new();
            for _ in 0..rng.below(14) {
                let word: String = (0..2 + rng.below(4)).map(|_| ['a', 'b', 'c'][rng.below(3)]).collect();
                if !words.contains(&word) {
                    words.push(word);
                }
            }
            let r = ranks(&words.iter().map(String::as_str).collect::<Vec<_>>());
            for _ in 0..20 {
                let text: Vec<u8> = (0..rng.below(24)).map(|_| b"abc"[rng.below(3)]).collect();
                let mut ids = Vec::new();
                if !text.is_empty() {
                    r.encode(&text, &mut ids);
                }
                assert_eq!(
                    ids,
                    if text.is_empty() { vec![] } else { oracle(&r, &text) },
                    "{words:?} {text:?}"
                );
            }
        }
    }

    #[test]
    fn every_byte_must_be_there_once() {
        let all: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
        assert!(matches!(Ranks::new(&all[..255]), Err(TokenizerError::MissingByte { byte: 255 })));
        let twice = [all.clone(), vec![vec![7]]].concat();
        assert!(Ranks::new(&twice).err().unwrap().to_string().contains("again"));
    }
}

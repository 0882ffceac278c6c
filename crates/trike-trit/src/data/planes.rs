//! Two bit planes.

use super::live_bits;
use crate::{Trit, TritError};

pub(super) fn scan(
    pos: &[u64],
    neg: &[u64],
    (plane, row): (usize, usize),
    cols: usize,
    nonzero: &mut [u64],
) -> Result<(), TritError> {
    for (word, ((p, n), out)) in pos.iter().zip(neg).zip(nonzero).enumerate() {
        if p & n != 0 {
            return Err(TritError::BothBits { plane, row, word });
        }
        if (p | n) & !live_bits(cols, word) != 0 {
            return Err(TritError::NonzeroPadding { plane, row });
        }
        *out = p | n;
    }
    Ok(())
}

pub(super) fn read(pos: &[u64], neg: &[u64], start: usize, out: &mut [i8]) {
    let mut done = 0;
    while done < out.len() {
        let (word, bit) = ((start + done) / 64, (start + done) % 64);
        let n = (64 - bit).min(out.len() - done);
        let (p, m) = (pos[word] >> bit, neg[word] >> bit);
        for (i, t) in out[done..done + n].iter_mut().enumerate() {
            *t = ((p >> i) & 1) as i8 - ((m >> i) & 1) as i8;
        }
        done += n;
    }
}

pub(super) fn get(pos: &[u64], neg: &[u64], word: usize, bit: usize) -> Trit {
    trit(pos[word], neg[word], bit)
}

pub(super) fn push(pos: &mut Vec<u64>, neg: &mut Vec<u64>, trits: &[i8]) {
    for chunk in trits.chunks(64) {
        let bits = |value: i8| {
            chunk.iter().enumerate().fold(0u64, |word, (i, &t)| word | u64::from(t == value) << i)
        };
        pos.push(bits(1));
        neg.push(bits(-1));
    }
}

/// The trit at a bit of two words.
#[inline]
pub(crate) fn trit(pos: u64, neg: u64, bit: usize) -> Trit {
    // A table lookup, not a `match`: a branch on a word that is not in the cache yet would wait for the load.
    [Trit::Z, Trit::P, Trit::N, Trit::Z][((pos >> bit) & 1 | ((neg >> bit) & 1) << 1) as usize]
}

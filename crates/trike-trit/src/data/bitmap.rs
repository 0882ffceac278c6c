//! One bit per trit and one sign bit per nonzero.

use super::{bit_words, live_bits};
use crate::{Trit, TritError};

pub(super) fn scan(
    map: &[u64],
    negative: &[u64],
    (plane, row): (usize, usize),
    cols: usize,
    nonzero: &mut [u64],
) -> Result<(), TritError> {
    let mut count = 0;
    for (word, (bits, out)) in map.iter().zip(nonzero).enumerate() {
        if bits & !live_bits(cols, word) != 0 {
            return Err(TritError::NonzeroPadding { plane, row });
        }
        count += bits.count_ones() as usize;
        *out = *bits;
    }
    if negative.len() != bit_words(count) {
        return Err(TritError::Offset { plane, row, expected: bit_words(count), got: negative.len() });
    }
    match negative.last() {
        Some(last) if last & !live_bits(count, negative.len() - 1) != 0 => {
            Err(TritError::NonzeroPadding { plane, row })
        }
        _ => Ok(()),
    }
}

/// Number of nonzeros before column `col`.
fn rank(map: &[u64], col: usize) -> usize {
    let whole: u32 = map[..col / 64].iter().map(|w| w.count_ones()).sum();
    let below = match col % 64 {
        0 => 0,
        bit => (map[col / 64] << (64 - bit)).count_ones(),
    };
    (whole + below) as usize
}

fn sign(negative: &[u64], rank: usize) -> i8 {
    if negative[rank / 64] >> (rank % 64) & 1 == 1 { -1 } else { 1 }
}

pub(crate) fn read(map: &[u64], negative: &[u64], start: usize, out: &mut [i8]) {
    let mut at = rank(map, start);
    for (i, t) in out.iter_mut().enumerate() {
        let col = start + i;
        *t = 0;
        if map[col / 64] >> (col % 64) & 1 == 1 {
            *t = sign(negative, at);
            at += 1;
        }
    }
}

pub(crate) fn get(map: &[u64], negative: &[u64], col: usize) -> Trit {
    if map[col / 64] >> (col % 64) & 1 == 0 {
        Trit::Z
    } else if sign(negative, rank(map, col)) < 0 {
        Trit::N
    } else {
        Trit::P
    }
}

pub(super) fn push(map: &mut Vec<u64>, negative: &mut Vec<u64>, trits: &[i8]) {
    for chunk in trits.chunks(64) {
        map.push(chunk.iter().enumerate().fold(0, |word, (i, &t)| word | u64::from(t != 0) << i));
    }
    let (mut word, mut used) = (0u64, 0);
    for &t in trits.iter().filter(|&&t| t != 0) {
        word |= u64::from(t < 0) << used;
        used += 1;
        if used == 64 {
            negative.push(word);
            (word, used) = (0, 0);
        }
    }
    if used > 0 {
        negative.push(word);
    }
}

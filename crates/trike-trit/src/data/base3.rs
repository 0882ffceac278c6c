//! Five trits per byte.

use crate::{Encoding, Trit, TritError};

/// Number of valid bytes: 3^5.
const BYTES: usize = 243;

/// Powers of three, the weight of each digit.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// Table of the five trits of every valid byte.
const TRITS: [[i8; 5]; BYTES] = {
    let mut table = [[0; 5]; BYTES];
    let mut byte = 0;
    while byte < BYTES {
        let mut digit = 0;
        while digit < 5 {
            table[byte][digit] = (byte / POWERS[digit] as usize % 3) as i8 - 1;
            digit += 1;
        }
        byte += 1;
    }
    table
};

/// Table of every valid byte with one bit per trit, set if the trit is nonzero.
const NONZERO: [u8; BYTES] = {
    let mut table = [0; BYTES];
    let mut byte = 0;
    while byte < BYTES {
        let mut digit = 0;
        while digit < 5 {
            table[byte] |= ((TRITS[byte][digit] != 0) as u8) << digit;
            digit += 1;
        }
        byte += 1;
    }
    table
};

pub(super) fn scan(
    bytes: &[u8],
    (plane, row): (usize, usize),
    cols: usize,
    nonzero: &mut [u64],
) -> Result<(), TritError> {
    for (i, &byte) in bytes.iter().enumerate() {
        let col = 5 * i;
        let Some(&bits) = NONZERO.get(byte as usize) else {
            return Err(TritError::Code { plane, row, col, code: byte, encoding: Encoding::Base3 });
        };
        if cols - col < 5 && bits >> (cols - col) != 0 {
            return Err(TritError::NonzeroPadding { plane, row });
        }
        let (word, bit) = (col / 64, col % 64);
        nonzero[word] |= u64::from(bits) << bit;
        // A byte may straddle two words. The tail was checked above, so no bit past the row carries over.
        if bit > 59 && word + 1 < nonzero.len() {
            nonzero[word + 1] |= u64::from(bits) >> (64 - bit);
        }
    }
    Ok(())
}

pub(super) fn read(bytes: &[u8], start: usize, out: &mut [i8]) {
    let mut done = 0;
    while done < out.len() {
        let (byte, at) = ((start + done) / 5, (start + done) % 5);
        let n = (5 - at).min(out.len() - done);
        out[done..done + n].copy_from_slice(&TRITS[bytes[byte] as usize][at..at + n]);
        done += n;
    }
}

pub(super) fn get(byte: u8, at: usize) -> Trit {
    match TRITS[byte as usize][at] {
        -1 => Trit::N,
        0 => Trit::Z,
        _ => Trit::P,
    }
}

pub(super) fn push(bytes: &mut Vec<u8>, trits: &[i8]) {
    for chunk in trits.chunks(5) {
        let digits = POWERS.iter().enumerate().map(|(i, &p)| p * (chunk.get(i).map_or(1, |&t| t + 1) as u8));
        bytes.push(digits.sum());
    }
}

/// Replaces a digit of a byte and returns the old one. The byte stays within 0..=242.
#[inline]
pub(super) fn swap(byte: &mut u8, at: usize, trit: Trit) -> Trit {
    let digit = TRITS[*byte as usize][at];
    *byte = byte.wrapping_add(((trit.value() - digit) as u8).wrapping_mul(POWERS[at]));
    [Trit::N, Trit::Z, Trit::P, Trit::Z][((digit + 1) & 3) as usize]
}

/// Whether the up to 32 trits of a row from `start` are all zero.
#[inline]
pub(super) fn block_is_zero(bytes: &[u8], start: usize) -> bool {
    // Eight bytes hold 40 trits, so they cover the block wherever it starts in the first byte.
    let block = bytes[start / 5..].iter().take(8).enumerate();
    let bits = block.fold(0u64, |bits, (i, &byte)| bits | u64::from(NONZERO[byte as usize]) << (5 * i));
    (bits >> (start % 5)) as u32 == 0
}

//! Codes `trit + 1` in two bits.

use crate::{Encoding, Trit, TritError};

/// 32 zero trits.
pub(super) const ZEROS: u64 = 0x5555_5555_5555_5555;

pub(super) fn scan(
    codes: &[u64],
    (plane, row): (usize, usize),
    cols: usize,
    nonzero: &mut [u64],
) -> Result<(), TritError> {
    for (i, &word) in codes.iter().enumerate() {
        let invalid = word & (word >> 1) & ZEROS;
        if invalid != 0 {
            let col = i * 32 + invalid.trailing_zeros() as usize / 2;
            return Err(TritError::Code { plane, row, col, code: 3, encoding: Encoding::TwoBit });
        }
        let differs = word ^ ZEROS;
        let bits = even_bits((differs | differs >> 1) & ZEROS);
        let live = cols - i * 32;
        if live < 32 && bits >> live != 0 {
            return Err(TritError::NonzeroPadding { plane, row });
        }
        nonzero[i / 2] |= bits << (32 * (i % 2));
    }
    Ok(())
}

/// The bits at even positions, compacted into the low 32 bits.
fn even_bits(mut x: u64) -> u64 {
    x = (x | x >> 1) & 0x3333_3333_3333_3333;
    x = (x | x >> 2) & 0x0F0F_0F0F_0F0F_0F0F;
    x = (x | x >> 4) & 0x00FF_00FF_00FF_00FF;
    x = (x | x >> 8) & 0x0000_FFFF_0000_FFFF;
    (x | x >> 16) & 0xFFFF_FFFF
}

pub(super) fn read(codes: &[u64], start: usize, out: &mut [i8]) {
    let mut done = 0;
    while done < out.len() {
        let (word, at) = ((start + done) / 32, (start + done) % 32);
        let n = (32 - at).min(out.len() - done);
        let bits = codes[word] >> (2 * at);
        for (i, t) in out[done..done + n].iter_mut().enumerate() {
            *t = ((bits >> (2 * i)) & 3) as i8 - 1;
        }
        done += n;
    }
}

pub(super) fn get(codes: &[u64], word: usize, at: usize) -> Trit {
    trit(codes[word], 2 * at)
}

pub(super) fn push(codes: &mut Vec<u64>, trits: &[i8]) {
    for chunk in trits.chunks(32) {
        // Starting from zero trits leaves zero trits in the padding.
        let code = chunk
            .iter()
            .enumerate()
            .fold(ZEROS, |word, (i, &t)| word & !(3 << (2 * i)) | (((t + 1) & 3) as u64) << (2 * i));
        codes.push(code);
    }
}

/// The trit whose code starts at a bit of a word; code 3 does not occur.
#[inline]
pub(super) fn trit(word: u64, at: usize) -> Trit {
    [Trit::N, Trit::Z, Trit::P, Trit::Z][((word >> at) & 3) as usize]
}

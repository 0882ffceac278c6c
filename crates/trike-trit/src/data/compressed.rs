//! Gaps between nonzeros, one byte each.

use crate::{Encoding, Trit, TritError};

/// Skip code: 127 zeros without a nonzero.
const SKIP: u8 = 127;

/// Largest gap that fits in the byte of a nonzero.
const MAX_GAP: usize = 126;

/// The nonzeros of a row as `(column, trit)`.
pub(crate) fn nonzeros(entries: &[u8]) -> impl Iterator<Item = (usize, i8)> + '_ {
    let mut col = 0;
    entries.iter().filter_map(move |&byte| {
        col += usize::from(byte & 0x7F);
        if byte == SKIP {
            return None;
        }
        col += 1;
        Some((col - 1, if byte & 0x80 == 0 { 1 } else { -1 }))
    })
}

pub(super) fn scan(
    entries: &[u8],
    (plane, row): (usize, usize),
    cols: usize,
    nonzero: &mut [u64],
) -> Result<(), TritError> {
    if let Some(i) = entries.iter().position(|&b| b == u8::MAX) {
        let col = nonzeros(&entries[..i]).last().map_or(0, |(col, _)| col + 1);
        return Err(TritError::Code { plane, row, col, code: u8::MAX, encoding: Encoding::RowCompressed });
    }
    // A trailing skip would be a second encoding of the same row.
    if entries.last() == Some(&SKIP) {
        return Err(TritError::NonzeroPadding { plane, row });
    }
    for (col, _) in nonzeros(entries) {
        if col >= cols {
            return Err(TritError::NonzeroPadding { plane, row });
        }
        nonzero[col / 64] |= 1 << (col % 64);
    }
    Ok(())
}

pub(crate) fn read(entries: &[u8], start: usize, out: &mut [i8]) {
    out.fill(0);
    let end = start + out.len();
    for (col, trit) in nonzeros(entries).skip_while(|&(col, _)| col < start).take_while(|&(col, _)| col < end)
    {
        out[col - start] = trit;
    }
}

pub(crate) fn get(entries: &[u8], col: usize) -> Trit {
    match nonzeros(entries).find(|&(at, _)| at >= col) {
        Some((at, trit)) if at == col => {
            if trit < 0 {
                Trit::N
            } else {
                Trit::P
            }
        }
        _ => Trit::Z,
    }
}

pub(super) fn push(entries: &mut Vec<u8>, trits: &[i8]) {
    let mut encoder = Encoder::new(entries);
    for (col, &trit) in trits.iter().enumerate().filter(|(_, trit)| **trit != 0) {
        encoder.push(col, trit < 0);
    }
}

/// Appends the nonzeros of a row in the order of their columns.
pub(crate) struct Encoder<'a> {
    entries: &'a mut Vec<u8>,
    /// The column after the last nonzero.
    next: usize,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(entries: &'a mut Vec<u8>) -> Self {
        Self { entries, next: 0 }
    }

    pub(crate) fn push(&mut self, col: usize, negative: bool) {
        let mut gap = col - self.next;
        while gap > MAX_GAP {
            self.entries.push(SKIP);
            gap -= usize::from(SKIP);
        }
        self.entries.push(gap as u8 | if negative { 0x80 } else { 0 });
        self.next = col + 1;
    }
}

/// Bytes of a nonzero after `gap` zeros, including the skip codes before it.
pub(crate) fn entry_bytes(gap: usize) -> usize {
    1 + gap / usize::from(SKIP)
}

//! Size limits of tokenizer files, and the function that reads them.

use std::{fs::File, io::Read, path::Path};

use super::TokenizerError;

/// Maximum size of a tokenizer file, in bytes. The largest in use (a `tokenizer.json` with 262,144 tokens) has 34 MB.
pub(super) const MAX_FILE_BYTES: u64 = 128 << 20;
/// Maximum number of tokens. The largest vocabulary in use has about one million.
pub(super) const MAX_TOKENS: usize = 1 << 22;
/// Maximum bytes per token. The longest in use are runs of a few hundred spaces or dashes.
pub(super) const MAX_TOKEN_BYTES: usize = 4096;

/// Maximum total size of training texts in bytes: the `tokenizers` crate counts token pairs in i32.
const MAX_TRAINING_BYTES: u64 = i32::MAX as u64;

/// Reads a whole file, at most [`MAX_FILE_BYTES`] of it.
pub(super) fn read_capped(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    check_file(size)?;
    let mut bytes = Vec::new();
    // The reported length is not trusted: a pipe or a growing file may contain more.
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    check_file(bytes.len() as u64)?;
    Ok(bytes)
}

fn check_file(bytes: u64) -> Result<(), TokenizerError> {
    check("the size of the file in bytes", bytes, MAX_FILE_BYTES)
}

pub(super) fn check_tokens(count: u64) -> Result<(), TokenizerError> {
    check("the number of tokens", count, MAX_TOKENS as u64)
}

pub(super) fn check_token(bytes: usize) -> Result<(), TokenizerError> {
    check("the length of a token in bytes", bytes as u64, MAX_TOKEN_BYTES as u64)
}

pub(super) fn check_training_text(bytes: u64) -> Result<(), TokenizerError> {
    check("the size of the texts in bytes", bytes, MAX_TRAINING_BYTES)
}

fn check(what: &'static str, requested: u64, limit: u64) -> Result<(), TokenizerError> {
    if requested > limit {
        return Err(TokenizerError::LimitExceeded { what, requested, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_holds_at_its_edge() {
        type Check = fn(u64) -> Result<(), TokenizerError>;
        let table: [(Check, u64); 4] = [
            (check_file, MAX_FILE_BYTES),
            (check_tokens, MAX_TOKENS as u64),
            (check_training_text, MAX_TRAINING_BYTES),
            (|n| check_token(n as usize), MAX_TOKEN_BYTES as u64),
        ];
        for (check, limit) in table {
            assert!(check(limit - 1).is_ok());
            assert!(check(limit).is_ok());
            let error = check(limit + 1).unwrap_err().to_string();
            assert!(
                error.contains(&limit.to_string()) && error.contains(&(limit + 1).to_string()),
                "{error}"
            );
        }
    }
}

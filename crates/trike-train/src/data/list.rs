//! Objects of a JSON list.

use std::io::BufRead;
use std::path::Path;

use crate::TrainError;

/// Whether a file is a list instead of JSON lines. Skips leading white space and returns the number of bytes and lines skipped.
pub(super) fn is_list(reader: &mut impl BufRead, path: &Path) -> Result<(bool, u64, usize), TrainError> {
    let (mut at, mut line) = (0, 1);
    loop {
        let bytes = reader.fill_buf().map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
        let blank = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        line += bytes[..blank].iter().filter(|byte| **byte == b'\n').count();
        at += blank as u64;
        match bytes.get(blank) {
            Some(byte) => {
                let is_list = *byte == b'[';
                reader.consume(blank);
                return Ok((is_list, at, line));
            }
            None if blank == 0 => return Ok((false, at, line)),
            None => reader.consume(blank),
        }
    }
}

/// The tokens that may follow in a list.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    /// The opening bracket.
    List,
    /// An object, or the end of an empty list.
    First,
    /// An object, after a comma.
    Object,
    /// A comma or the end.
    Comma,
    /// Nothing.
    End,
}

/// Calls `add` with start, length and line of each object of a list that begins at byte `at` and line `line`. Only brackets are
/// matched: other errors within an object are found when it is parsed.
pub(super) fn objects(
    mut reader: impl BufRead,
    path: &Path,
    longest: usize,
    (mut at, mut line): (u64, usize),
    add: &mut impl FnMut(u64, usize, usize),
) -> Result<(), TrainError> {
    let wrong = |line: usize, problem: String| TrainError::Record { path: path.to_owned(), line, problem };
    let mut next = Next::List;
    // Start and line of the current object, its nesting depth, whether a string is open, and whether the next byte is escaped in
    // it.
    let (mut start, mut first_line, mut depth) = (0, 0, 0usize);
    let (mut is_string, mut is_escaped) = (false, false);
    loop {
        let bytes = reader.fill_buf().map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
        if bytes.is_empty() {
            break;
        }
        let read = bytes.len();
        for &byte in bytes {
            if depth > 0 {
                if is_string {
                    (is_string, is_escaped) = (is_escaped || byte != b'"', !is_escaped && byte == b'\\');
                } else {
                    match byte {
                        b'"' => is_string = true,
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => depth -= 1,
                        _ => {}
                    }
                }
                let len = at + 1 - start;
                if len > longest as u64 {
                    return Err(wrong(first_line, format!("an object of more than {longest} bytes")));
                }
                if depth == 0 {
                    add(start, len as usize, first_line);
                    next = Next::Comma;
                }
            } else if !byte.is_ascii_whitespace() {
                next = match (next, byte) {
                    (Next::List, b'[') => Next::First,
                    (Next::First | Next::Object, b'{') => {
                        (start, first_line, depth) = (at, line, 1);
                        next
                    }
                    (Next::Comma, b',') => Next::Object,
                    (Next::First | Next::Comma, b']') => Next::End,
                    _ => {
                        let expected = match next {
                            Next::List => "a list",
                            Next::First => "an object or the end of the list",
                            Next::Object => "an object",
                            Next::Comma => "a comma or the end of the list",
                            Next::End => "nothing after the list",
                        };
                        return Err(wrong(
                            line,
                            format!("expected {expected}, got `{}`", byte.escape_ascii()),
                        ));
                    }
                };
            }
            at += 1;
            line += usize::from(byte == b'\n');
        }
        reader.consume(read);
    }
    match next {
        Next::End => Ok(()),
        _ => Err(wrong(line, "the file ends before the end of the list".to_owned())),
    }
}

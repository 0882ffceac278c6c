//! Models split into several GGUF files by `llama-gguf-split`: the first file contains the metadata, each file its own tensors.

use std::path::{Path, PathBuf};

use super::meta::Metadata;
use crate::{FormatError, look::not_a_model};

/// Key of the number of a file, from 0.
const NUMBER: &str = "split.no";
/// Number of files.
const COUNT: &str = "split.count";
/// Tensors of all files.
const TENSORS: &str = "split.tensors.count";

/// The names of all files of a split GGUF model, in order, from the name or path of any of them, `…-00002-of-00003.gguf`; `None`
/// for the name of a whole file.
///
/// ```
/// use trike_format::gguf_parts;
///
/// assert_eq!(gguf_parts("m-00002-of-00002.gguf").unwrap(), ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]);
/// assert_eq!(gguf_parts("m.gguf"), None);
/// ```
pub fn gguf_parts(name: &str) -> Option<Vec<String>> {
    let (start, number, count) = numbers(name)?;
    (1..=count).contains(&number).then(|| (1..=count).map(|i| name_of(start, i, count)).collect())
}

/// The prefix of a file name and its two numbers.
fn numbers(name: &str) -> Option<(&str, u32, u32)> {
    let number = |text: &str| {
        let five = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| five)
    };
    let (start, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (start, of) = start.rsplit_once('-')?;
    Some((start, number(of)?, number(count)?))
}

fn name_of(start: &str, number: u32, count: u32) -> String {
    format!("{start}-{number:05}-of-{count:05}.gguf")
}

/// The number of the file, from 0, and the number of files; `None` for a model in one file.
fn place(path: &Path, metadata: &Metadata) -> Result<Option<(u32, u32)>, FormatError> {
    let number = |key: &str| match metadata.get(key) {
        None => Ok(0),
        Some(value) => {
            value.as_u32().ok_or_else(|| header(path, key, "an integer from 0 on", value.describe()))
        }
    };
    let (number, count) = (number(NUMBER)?, number(COUNT)?);
    match count {
        0 | 1 => Ok(None),
        _ if number < count => Ok(Some((number, count))),
        _ => Err(header(path, NUMBER, &format!("less than {COUNT} {count}"), number.to_string())),
    }
}

/// The paths of all files of the model that a file belongs to; only the file itself if the model is not split.
pub(super) fn paths(path: &Path, metadata: &Metadata) -> Result<Vec<PathBuf>, FormatError> {
    let Some((number, count)) = place(path, metadata)? else { return Ok(vec![path.to_owned()]) };
    // A symbolic link may have any name; its target has the name of its part.
    let own = |path: &Path| {
        let (start, of, named) = numbers(path.file_name()?.to_str()?)?;
        let parts = (1..=count).map(|i| path.with_file_name(name_of(start, i, count)));
        (of == number + 1 && named == count).then(|| parts.collect::<Vec<_>>())
    };
    let parts = own(path).or_else(|| own(&path.canonicalize().ok()?)).ok_or_else(|| {
        let found = format!("part {} of {count} of a split GGUF model, under another name", number + 1);
        let name = name_of("NAME", number + 1, count);
        not_a_model(path, &found, &format!("rename it to {name}, next to the other parts"))
    })?;
    match parts.iter().enumerate().find(|(_, part)| !part.is_file()) {
        None => Ok(parts),
        Some((i, part)) => {
            let name = part.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let found = format!("a GGUF model in {count} files of which part {} is missing: {name}", i + 1);
            Err(not_a_model(path, &found, "put all of its files into one directory"))
        }
    }
}

/// Checks that a file is part `number` (from 0) of `count`.
pub(super) fn check(
    path: &Path,
    metadata: &Metadata,
    number: usize,
    count: usize,
) -> Result<(), FormatError> {
    let got = place(path, metadata)?.map_or((0, 1), |(number, count)| (number as usize, count as usize));
    if got == (number, count) || count == 1 {
        return Ok(());
    }
    let text = |(number, count): (usize, usize)| format!("part {} of {count}", number + 1);
    Err(header(path, NUMBER, &text((number, count)), text(got)))
}

/// Checks the total number of tensors.
pub(super) fn check_tensors(path: &Path, metadata: &Metadata, tensors: usize) -> Result<(), FormatError> {
    match metadata.get(TENSORS).and_then(super::MetaValue::as_i64) {
        Some(expected) if usize::try_from(expected) != Ok(tensors) => {
            Err(header(path, TENSORS, &format!("{expected} tensors in all files"), tensors.to_string()))
        }
        _ => Ok(()),
    }
}

fn header(path: &Path, key: &str, expected: &str, got: String) -> FormatError {
    FormatError::Header {
        path: path.to_owned(),
        what: format!("`{key}`"),
        expected: expected.to_owned(),
        got,
    }
}

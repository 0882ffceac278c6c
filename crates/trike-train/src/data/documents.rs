//! The index of the documents of data files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use trike_llm::STORY_MARK;

use super::list::{is_list, objects};
use super::{DataRecord, EncodeError, RecordKind};
use crate::TrainError;

/// Maximum length in bytes of a text without separators, which is then split at the end of a line to bound memory.
const LONGEST: usize = 1 << 20;
/// Maximum length in bytes of a line of JSON.
const LONGEST_LINE: usize = 64 << 20;

/// Kind of a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Documents of text, each ended by [`STORY_MARK`] or the end of the file.
    Text,
    /// JSON objects: one per line, or those of a list.
    Json,
    /// The rows of a Parquet file, read as lines of JSON.
    #[cfg(feature = "parquet")]
    Parquet,
}

#[derive(Debug)]
struct Source {
    path: PathBuf,
    kind: Kind,
    records: RecordKind,
    file: Mutex<File>,
}

/// Location of a document in a file.
#[derive(Clone, Copy, Debug)]
struct Place {
    source: u32,
    start: u64,
    len: u32,
    /// The line on which it starts, counted from 1.
    line: u32,
}

/// The documents of several data files. Only their locations are in memory; a document is read on demand.
///
/// In text files (`.txt`, `.text`, `.md`), documents are separated by `<|endoftext|>`; a text of more than 1 MiB is split at line
/// ends. JSON files (`.jsonl`, `.json`) have one document per nonempty line, or are a list of documents: see
/// [`DataRecord::from_json`]. With the feature `parquet`, a row of a Parquet file (`.parquet`) is read like a JSON line with the
/// same columns; the rows are copied to a temporary file.
///
/// ```
/// use trike_train::data::{DataRecord, Documents};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("stories.txt");
/// std::fs::write(&path, "Once upon a time.\n<|endoftext|>\n\n<|endoftext|>\nThe end.\n")?;
/// let documents = Documents::open(&[path])?;
/// assert_eq!(documents.len(), 2);
/// assert_eq!(documents.read(1)?, DataRecord::Text("The end.".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Documents {
    sources: Vec<Source>,
    places: Vec<Place>,
    /// Documents that are given as tokens; they follow the documents of the files.
    tokens: Vec<Vec<u32>>,
    bytes: u64,
}

impl Documents {
    /// Indexes the documents of all `paths`, in order.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`], [`TrainError::DataFile`], and [`TrainError::TooFewDocuments`] when there is none, or 2^32 or more.
    pub fn open(paths: &[impl AsRef<Path>]) -> Result<Self, TrainError> {
        let all: Vec<_> = paths.iter().map(|path| (path, RecordKind::Any)).collect();
        Self::open_as(&all)
    }

    /// [`open`](Self::open) with the record kind of each file, which has no effect on text files.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_as(paths: &[(impl AsRef<Path>, RecordKind)]) -> Result<Self, TrainError> {
        let mut all = Self { sources: Vec::new(), places: Vec::new(), tokens: Vec::new(), bytes: 0 };
        for (path, records) in paths {
            let path = path.as_ref();
            let kind = kind_of(path)?;
            let fail = |source| TrainError::Io { path: path.to_owned(), source };
            let file = match kind {
                #[cfg(feature = "parquet")]
                Kind::Parquet => super::parquet::as_lines(path)?,
                _ => File::open(path).map_err(fail)?,
            };
            let source = all.sources.len() as u32;
            let mut reader = BufReader::with_capacity(1 << 16, file.try_clone().map_err(fail)?);
            // The rows of the Parquet file were written to it.
            reader.rewind().map_err(fail)?;
            let places = &mut all.places;
            let mut add = |start: u64, len: usize, line: usize| {
                let place = Place {
                    source,
                    start,
                    // At most `LONGEST_LINE` for a line, less than twice `LONGEST` for a text.
                    len: len as u32,
                    line: u32::try_from(line).unwrap_or(u32::MAX),
                };
                places.push(place);
            };
            match kind {
                Kind::Text => texts(reader, path, &mut add)?,
                _ => match is_list(&mut reader, path)? {
                    (true, at, line) => objects(reader, path, LONGEST_LINE, (at, line), &mut add)?,
                    (false, ..) => {
                        reader.rewind().map_err(fail)?;
                        lines(reader, path, &mut add)?;
                    }
                },
            }
            all.bytes += file.metadata().map_err(fail)?.len();
            let (path, file) = (path.to_owned(), Mutex::new(file));
            all.sources.push(Source { path, kind, records: *records, file });
        }
        match all.places.len() {
            0 => Err(TrainError::TooFewDocuments { documents: 0, needed: 1 }),
            len if u32::try_from(len).is_err() => {
                Err(TrainError::TooManyDocuments { documents: len, most: u32::MAX as usize })
            }
            _ => Ok(all),
        }
    }

    /// Appends documents of tokens, such as text generated by the teacher ([`DocumentSampler`](crate::DocumentSampler)).
    ///
    /// # Errors
    ///
    /// [`TrainError::TooManyDocuments`] for a total of 2^32 or more.
    pub fn with_tokens(mut self, tokens: Vec<Vec<u32>>) -> Result<Self, TrainError> {
        self.add_tokens(tokens)?;
        Ok(self)
    }

    /// As [`with_tokens`](Self::with_tokens), in place.
    pub(crate) fn add_tokens(&mut self, tokens: Vec<Vec<u32>>) -> Result<(), TrainError> {
        self.tokens.extend(tokens);
        match self.len() {
            documents if u32::try_from(documents).is_err() => {
                Err(TrainError::TooManyDocuments { documents, most: u32::MAX as usize })
            }
            _ => Ok(()),
        }
    }

    /// Number of documents, at least one.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() + self.tokens.len()
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Calls `each` with the path and the content of each file; Parquet files as JSON lines.
    pub(crate) fn each_file(
        &self,
        each: &mut dyn FnMut(&Path, &mut File) -> std::io::Result<()>,
    ) -> Result<(), TrainError> {
        for Source { path, file, .. } in &self.sources {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            each(path, &mut file).map_err(|source| TrainError::Io { path: path.clone(), source })?;
        }
        Ok(())
    }

    /// Reads the document `index`; texts are trimmed.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`] when the file is unreadable or has changed, [`TrainError::Record`] for a malformed line and for bytes
    /// that are not UTF-8.
    ///
    /// # Panics
    ///
    /// When `index` is not below [`len`](Self::len).
    pub fn read(&self, index: usize) -> Result<DataRecord, TrainError> {
        let Some(place) = self.places.get(index) else {
            return Ok(DataRecord::Tokens(self.tokens[index - self.places.len()].clone()));
        };
        let source = &self.sources[place.source as usize];
        let mut bytes = vec![0; place.len as usize];
        {
            let mut file = source.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(place.start))
                .and_then(|_| file.read_exact(&mut bytes))
                .map_err(|e| TrainError::Io { path: source.path.clone(), source: e })?;
        }
        let wrong = |problem: String| self.wrong(index, problem);
        let text = String::from_utf8(bytes).map_err(|_| wrong("the text is not UTF-8".to_owned()))?;
        match source.kind {
            Kind::Text => Ok(DataRecord::Text(text.trim().to_owned())),
            _ => DataRecord::from_json_of(&text, source.records).map_err(wrong),
        }
    }

    /// Reads all documents, so that a malformed one is found before a run starts.
    ///
    /// # Errors
    ///
    /// Errors of [`read`](Self::read).
    pub fn check(&self) -> Result<(), TrainError> {
        (0..self.places.len()).try_for_each(|index| self.read(index).map(drop))
    }

    fn wrong(&self, index: usize, problem: String) -> TrainError {
        let (path, line) = match self.places.get(index) {
            Some(place) => (self.sources[place.source as usize].path.clone(), place.line as usize),
            // Documents of tokens are not encoded and have no location.
            None => (PathBuf::new(), 0),
        };
        TrainError::Record { path, line, problem }
    }

    /// The error of a document that cannot be encoded.
    pub(crate) fn not_encoded(&self, index: usize, error: &EncodeError) -> TrainError {
        self.wrong(index, error.to_string())
    }
}

fn kind_of(path: &Path) -> Result<Kind, TrainError> {
    let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
    match extension.as_deref() {
        Some("txt" | "text" | "md") => Ok(Kind::Text),
        Some("jsonl" | "json") => Ok(Kind::Json),
        #[cfg(feature = "parquet")]
        Some("parquet") => Ok(Kind::Parquet),
        #[cfg(not(feature = "parquet"))]
        Some("parquet") => Err(TrainError::DataFile {
            path: path.to_owned(),
            problem: "this build does not read Parquet files, build with the feature `parquet`",
        }),
        _ => Err(TrainError::DataFile {
            path: path.to_owned(),
            problem: "unknown data format: expected a file name ending in .txt, .text, .md, .jsonl, .json or .parquet",
        }),
    }
}

/// A line of a file, or a piece of a long one.
struct Piece<'b> {
    /// Place in the file.
    start: u64,
    /// Number of the line, counted from 1.
    line: usize,
    bytes: &'b [u8],
}

impl Piece<'_> {
    /// Byte offset and line number of its end.
    fn end(&self) -> (u64, usize) {
        (self.start + self.bytes.len() as u64, self.line + usize::from(self.bytes.ends_with(b"\n")))
    }
}

/// Calls `each` with all lines of a file; lines of more than `longest` bytes in pieces.
fn pieces(
    mut reader: impl BufRead,
    path: &Path,
    longest: usize,
    mut each: impl FnMut(Piece<'_>) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let (mut start, mut line) = (0, 1);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = reader
            .by_ref()
            .take(longest as u64)
            .read_until(b'\n', &mut bytes)
            .map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
        if read == 0 {
            return Ok(());
        }
        let piece = Piece { start, line, bytes: &bytes };
        (start, line) = piece.end();
        each(piece)?;
    }
}

/// Calls `add` with start, length and line of each document of a text.
fn texts(
    reader: impl BufRead,
    path: &Path,
    add: &mut impl FnMut(u64, usize, usize),
) -> Result<(), TrainError> {
    // Start and line of the current document, whether it has text, and the end of the input so far.
    let mut current: (u64, usize, bool) = (0, 1, false);
    let mut at = 0;
    pieces(reader, path, LONGEST, |piece| {
        let (start, bytes) = (piece.start, piece.bytes);
        let mut from = 0;
        while let Some(found) = find(&bytes[from..], STORY_MARK.as_bytes()) {
            let end = start + (from + found) as u64;
            if current.2 || has_text(&bytes[from..from + found]) {
                add(current.0, (end - current.0) as usize, current.1);
            }
            from += found + STORY_MARK.len();
            current = (start + from as u64, piece.line, false);
        }
        current.2 |= has_text(&bytes[from..]);
        let next_line;
        (at, next_line) = piece.end();
        if at - current.0 >= LONGEST as u64 {
            let cut = (start + end_of_piece(bytes) as u64).max(current.0);
            if current.2 {
                add(current.0, (cut - current.0) as usize, current.1);
            }
            current = (cut, next_line, has_text(&bytes[(cut - start) as usize..]));
        }
        Ok(())
    })?;
    if current.2 {
        add(current.0, (at - current.0) as usize, current.1);
    }
    Ok(())
}

/// Calls `add` with start, length and number of each nonempty line.
fn lines(
    reader: impl BufRead,
    path: &Path,
    add: &mut impl FnMut(u64, usize, usize),
) -> Result<(), TrainError> {
    pieces(reader, path, LONGEST_LINE + 1, |piece| {
        if piece.bytes.len() > LONGEST_LINE {
            let problem = format!("a line of more than {LONGEST_LINE} bytes");
            return Err(TrainError::Record { path: path.to_owned(), line: piece.line, problem });
        }
        if has_text(piece.bytes) {
            add(piece.start, piece.bytes.len(), piece.line);
        }
        Ok(())
    })
}

/// Split point of a long text: after its last line, word or character.
fn end_of_piece(bytes: &[u8]) -> usize {
    let after = |found: Option<usize>| found.map(|at| at + 1);
    after(bytes.iter().rposition(|&b| b == b'\n'))
        .or_else(|| after(bytes.iter().rposition(u8::is_ascii_whitespace)))
        .or_else(|| bytes.iter().rposition(|&b| b & 0xC0 != 0x80))
        .unwrap_or(bytes.len())
}

fn has_text(bytes: &[u8]) -> bool {
    bytes.iter().any(|b| !b.is_ascii_whitespace())
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(name: &str, bytes: &[u8]) -> Result<(tempfile::TempDir, Documents), TrainError> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).expect("it is written");
        Documents::open(&[path]).map(|documents| (dir, documents))
    }

    #[test]
    fn separators_may_be_anywhere() {
        let text = "a\nb<|endoftext|>c <|endoftext|><|endoftext|>\n \n<|endoftext|>\nd";
        let (_dir, documents) = open("a.txt", text.as_bytes()).expect("documents");
        let all: Vec<DataRecord> = (0..documents.len()).map(|i| documents.read(i).expect("a text")).collect();
        assert_eq!(all, ["a\nb", "c", "d"].map(|text| DataRecord::Text(text.to_owned())));
        assert_eq!(documents.bytes(), text.len() as u64);
    }

    #[test]
    fn long_texts_are_cut_and_nothing_is_lost() {
        let words = "word ".repeat(500_000);
        let wide = "\u{4e2d}".repeat(800_000);
        let lines = "one line\n".repeat(300_000);
        for text in [words, wide, lines] {
            let (_dir, documents) = open("a.txt", text.as_bytes()).expect("documents");
            assert!(documents.len() >= 2);
            let mut left = text.split_whitespace().collect::<String>();
            for i in 0..documents.len() {
                let DataRecord::Text(piece) = documents.read(i).expect("a text") else { panic!("a text") };
                assert!(piece.len() < 2 * LONGEST);
                let piece: String = piece.split_whitespace().collect();
                left = left.strip_prefix(&piece).expect("the next piece").to_owned();
            }
            assert!(left.is_empty());
        }
    }

    #[test]
    fn errors_name_the_line() {
        let lines = "{\"text\": \"a\"}\n\n{\"text\": 3}\n{\"text\": \"\u{fc}\"}\n";
        let (_dir, documents) = open("a.jsonl", lines.as_bytes()).expect("documents");
        assert_eq!(documents.len(), 3);
        let error = documents.read(1).expect_err("a number").to_string();
        assert!(error.contains("a.jsonl, line 3: `text` is a number"), "{error}");
        assert!(documents.read(0).is_ok() && documents.read(2).is_ok());
        let (_dir, documents) = open("a.txt", b"\nabc\xff\n").expect("documents");
        assert!(matches!(documents.read(0), Err(TrainError::Record { line: 1, .. })));
    }

    #[test]
    fn a_list_has_its_objects() {
        let text = " \n[ {\"text\": \"a [\\\"}\"},\n\n{\n  \"text\":\n \"b\"\n}\n,{\"text\": \"c\"} ]\n ";
        for name in ["a.json", "a.jsonl"] {
            let (_dir, documents) = open(name, text.as_bytes()).expect("documents");
            let all: Vec<DataRecord> =
                (0..documents.len()).map(|i| documents.read(i).expect("a text")).collect();
            assert_eq!(all, ["a [\"}", "b", "c"].map(|text| DataRecord::Text(text.to_owned())));
        }
        for (text, problem) in [
            ("[{\"text\": \"a\"}", "line 1: the file ends before"),
            ("[\n{\"text\": \"a\"}\n{}]", "line 3: expected a comma or the end of the list, got `{`"),
            ("[{\"text\": \"a\"},]", "expected an object, got `]`"),
            ("[1]", "expected an object or the end of the list, got `1`"),
            ("[]\n5", "line 2: expected nothing after the list"),
        ] {
            let error = open("a.json", text.as_bytes()).expect_err(text).to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
        assert!(matches!(open("a.json", b"[ ]"), Err(TrainError::TooFewDocuments { documents: 0, .. })));
        // Errors name the line of the object.
        let (_dir, documents) = open("a.json", b"[\n{\"text\": 1}]").expect("documents");
        assert!(matches!(documents.check(), Err(TrainError::Record { line: 2, .. })));
    }

    #[test]
    fn what_has_no_documents_is_refused() {
        for (name, bytes) in [("a.txt", &b" \n<|endoftext|>\n"[..]), ("a.jsonl", b"\n\n")] {
            assert!(matches!(open(name, bytes), Err(TrainError::TooFewDocuments { documents: 0, .. })));
        }
        assert!(matches!(open("a.csv", b"a"), Err(TrainError::DataFile { .. })));
        assert!(matches!(Documents::open(&["/nowhere/a.txt"]), Err(TrainError::Io { .. })));
    }
}

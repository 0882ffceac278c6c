//! Rows of Parquet files as lines of JSON.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::Type;
use serde_json::Value;

use super::keys::is_without_effect;
use crate::TrainError;

/// A file must have at least one of these columns, see [`DataRecord::from_json`](super::DataRecord::from_json). Other columns are
/// read as well, except those without effect, since they may change what is trained on.
const COLUMNS: [&str; 4] = ["text", "instruction", "messages", "conversations"];

/// Writes the rows of a file as JSON lines to an anonymous temporary file, for random access: a row of a Parquet file can only be
/// read after all preceding rows of its group.
///
/// # Errors
///
/// [`TrainError::Record`] with the row number for a malformed file or one without any of the columns, and [`TrainError::Io`].
pub(super) fn as_lines(path: &Path) -> Result<File, TrainError> {
    let io = |source| TrainError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let mut lines = BufWriter::with_capacity(1 << 16, tempfile::tempfile().map_err(io)?);
    let mut row = 0;
    // The library validates files, but not every length that it allocates or index that it uses.
    let read = catch_unwind(AssertUnwindSafe(|| write_rows(file, &mut lines, &mut row)));
    let wrong = |problem: String| TrainError::Record { path: path.to_owned(), line: row + 1, problem };
    match read {
        Ok(Ok(())) => lines.into_inner().map_err(|e| io(e.into_error())),
        Ok(Err(Problem::Io(source))) => Err(io(source)),
        Ok(Err(Problem::Parquet(error))) => Err(wrong(format!("Parquet: {error}"))),
        Ok(Err(Problem::Columns(found))) => {
            Err(wrong(format!("expected a column {}, got {}", COLUMNS.join(" or "), found.join(", "))))
        }
        Err(_) => Err(wrong("the Parquet file is malformed".to_owned())),
    }
}

/// Why reading a file stopped.
enum Problem {
    Io(std::io::Error),
    Parquet(ParquetError),
    /// The column names of a file without any known column.
    Columns(Vec<String>),
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<ParquetError> for Problem {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

fn write_rows(file: File, to: &mut impl Write, done: &mut usize) -> Result<(), Problem> {
    let reader = SerializedFileReader::new(file)?;
    let schema = reader.metadata().file_metadata().schema();
    let fields = schema.get_fields();
    let read: Vec<_> =
        fields.iter().filter(|field| !is_without_effect(field.name())).map(Arc::clone).collect();
    if !read.iter().any(|field| COLUMNS.contains(&field.name())) {
        return Err(Problem::Columns(fields.iter().map(|field| field.name().to_owned()).collect()));
    }
    let projection = Type::group_type_builder(schema.name()).with_fields(read).build()?;
    for row in reader.get_row_iter(Some(projection))? {
        let mut row = row?.to_json_value();
        drop_absent(&mut row, false);
        serde_json::to_writer(&mut *to, &row).map_err(std::io::Error::from)?;
        to.write_all(b"\n")?;
        *done += 1;
    }
    to.flush()?;
    Ok(())
}

/// Removes nulls from tools and tool calls. A column has the union of the fields of all rows, so a call also has the arguments of
/// all other tools, as nulls.
fn drop_absent(value: &mut Value, is_within: bool) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| drop_absent(value, is_within)),
        Value::Object(fields) => {
            if is_within {
                fields.retain(|_, value| !value.is_null());
            }
            for (name, value) in fields {
                drop_absent(value, is_within || ["tool_calls", "tools"].contains(&name.as_str()));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use serde_json::json;

    use super::super::{DataRecord, Documents};
    use super::*;

    /// A text column in two row groups, with a column that is not read.
    fn write(path: &Path, column: &str, compression: Compression) {
        let message = format!("message m {{ required int64 id; required binary {column} (STRING); }}");
        let schema = Arc::new(parse_message_type(&message).expect("a schema"));
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let file = File::create(path).expect("a file");
        let mut writer = SerializedFileWriter::new(file, schema, properties).expect("a writer");
        for group in [["Once upon a time.", "The \"end\".\nReally."], ["Three.", " "]] {
            let mut rows = writer.next_row_group().expect("a group");
            let mut ids = rows.next_column().expect("no error").expect("a column");
            ids.typed::<Int64Type>().write_batch(&[1, 2], None, None).expect("it is written");
            ids.close().expect("it is closed");
            let mut texts = rows.next_column().expect("no error").expect("a column");
            let values = group.map(ByteArray::from);
            texts.typed::<ByteArrayType>().write_batch(&values, None, None).expect("it is written");
            texts.close().expect("it is closed");
            rows.close().expect("it is closed");
        }
        writer.close().expect("it is closed");
    }

    #[test]
    fn rows_are_documents() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("data.parquet");
        for compression in
            [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(Default::default())]
        {
            write(&path, "text", compression);
            let documents = Documents::open(&[&path]).expect("documents");
            assert_eq!(documents.len(), 4, "{compression}");
            for (index, text) in [(1, "The \"end\".\nReally."), (0, "Once upon a time."), (2, "Three.")] {
                assert_eq!(documents.read(index).expect("a record"), DataRecord::Text(text.to_owned()));
            }
        }
    }

    #[test]
    fn a_call_has_the_arguments_of_its_own_tool() {
        let call = |arguments: Value| {
            json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": null, "function": {
                "name": "f", "arguments": arguments}}]}], "tools": null})
        };
        let mut row = call(json!({"city": "Paris", "of": [1, null], "to": null, "range": {"from": null}}));
        drop_absent(&mut row, false);
        let mut want = call(json!({"city": "Paris", "of": [1, null], "range": {}}));
        want["messages"][0]["tool_calls"][0].as_object_mut().expect("a call").remove("id");
        assert_eq!(row, want);
    }

    #[test]
    fn what_is_malformed_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("data.parquet");
        write(&path, "comment", Compression::UNCOMPRESSED);
        let error = Documents::open(&[&path]).expect_err("no column").to_string();
        assert!(error.contains("messages") && error.contains("id, comment"), "{error}");
        write(&path, "text", Compression::SNAPPY);
        let whole = std::fs::read(&path).expect("a file");
        // Every truncation and every changed byte: an error or documents, never a panic.
        let mut failed = 0;
        for at in 0..whole.len() {
            for cut in [true, false] {
                let mut bytes = whole.clone();
                match cut {
                    true => bytes.truncate(at),
                    false => bytes[at] ^= 0x55,
                }
                std::fs::write(&path, bytes).expect("it is written");
                failed += usize::from(Documents::open(&[&path]).is_err());
            }
        }
        assert!(failed > whole.len(), "{failed} of {}", 2 * whole.len());
    }
}

//! The log of a run: JSON lines and TensorBoard events.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::measure::{HeldOutLoss, finite_or_nan};
use crate::TrainError;

/// Name of the log in the output directory.
const LOG: &str = "log.jsonl";

/// Means over the steps since the previous line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepLine {
    /// Steps taken.
    pub step: usize,
    /// Target tokens since the start.
    pub tokens: u64,
    /// Cross-entropy in bits per token.
    #[serde(deserialize_with = "finite_or_nan")]
    pub bits_per_token: f64,
    /// Divergence from the teacher in bits per token.
    #[serde(deserialize_with = "finite_or_nan")]
    pub divergence: f64,
    /// Gradient norm before clipping.
    #[serde(deserialize_with = "finite_or_nan")]
    pub grad_norm: f64,
    /// Learning rate of the last step.
    pub learning_rate: f32,
    /// Interpolation factor of the ternary weights in the last step.
    pub lambda: f32,
    /// Tokens per second.
    #[serde(deserialize_with = "finite_or_nan")]
    pub tokens_per_second: f64,
    /// Steps skipped because of f16 overflow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LogLine {
    /// Some steps.
    Steps(StepLine),
    /// An evaluation.
    Evaluation(HeldOutLoss),
}

impl LogLine {
    fn step(&self) -> usize {
        match self {
            Self::Steps(line) => line.step,
            Self::Evaluation(line) => line.step,
        }
    }

    /// Names and values of the curves that a line contributes to.
    fn points(&self) -> Vec<(&'static str, f64)> {
        match self {
            Self::Steps(line) => vec![
                ("train/bits_per_token", line.bits_per_token),
                ("train/divergence", line.divergence),
                ("train/grad_norm", line.grad_norm),
                ("train/learning_rate", f64::from(line.learning_rate)),
                ("train/lambda", f64::from(line.lambda)),
                ("train/tokens_per_second", line.tokens_per_second),
            ],
            Self::Evaluation(line) => {
                let bytes = line.bits_per_byte.map(|bits| ("eval/bits_per_byte", bits));
                std::iter::once(("eval/bits_per_token", line.bits_per_token)).chain(bytes).collect()
            }
        }
    }
}

/// The log of an active run.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    events: Events,
    pub(super) lines: Vec<LogLine>,
}

impl Log {
    /// Opens the log in `dir` and drops the lines of steps after `step`: an interrupted run repeats these steps.
    pub(super) fn open(dir: &Path, step: usize) -> Result<Self, TrainError> {
        let path = dir.join(LOG);
        let io = |source| TrainError::Io { path: path.clone(), source };
        let mut lines = Vec::new();
        if step > 0 && path.exists() {
            for line in BufReader::new(File::open(&path).map_err(io)?).lines() {
                // The last line may be truncated.
                let Ok(line) = serde_json::from_str::<LogLine>(&line.map_err(io)?) else { continue };
                if line.step() <= step {
                    lines.push(line);
                }
            }
        }
        let text: String = lines.iter().map(text_of).collect();
        let temporary = dir.join(".log.jsonl");
        fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path)).map_err(io)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(io)?;
        let events = Events::create(dir)?;
        Ok(Self { path, file, events, lines })
    }

    /// Adds a line.
    pub(super) fn add(&mut self, line: LogLine) -> Result<(), TrainError> {
        let io = |source| TrainError::Io { path: self.path.clone(), source };
        self.file.write_all(text_of(&line).as_bytes()).map_err(io)?;
        for (name, value) in line.points() {
            self.events.add(line.step(), name, value)?;
        }
        self.lines.push(line);
        Ok(())
    }
}

fn text_of(line: &LogLine) -> String {
    // These types always serialize; values that are not finite become null.
    serde_json::to_value(line).map_or_else(|_| Value::Null.to_string(), |value| value.to_string()) + "\n"
}

/// A TensorBoard event file: records (length, its checksum, data, its checksum) of protocol buffers, as TensorFlow writes them.
#[derive(Debug)]
struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    fn create(dir: &Path) -> Result<Self, TrainError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let path = dir.join(format!("events.out.tfevents.{:010}.trike", now.as_secs()));
        let io = |source| TrainError::Io { path: path.clone(), source };
        let file = OpenOptions::new().append(true).create(true).open(&path).map_err(io)?;
        let mut events = Self { path, file };
        events.record(&event(0, &field(3, b"brain.Event:2")))?;
        Ok(events)
    }

    /// Adds a point of a curve.
    fn add(&mut self, step: usize, name: &str, value: f64) -> Result<(), TrainError> {
        let mut point = field(1, name.as_bytes());
        // Field 2, four bytes.
        point.push(2 << 3 | 5);
        point.extend((value as f32).to_le_bytes());
        self.record(&event(step, &field(5, &field(1, &point))))
    }

    fn record(&mut self, data: &[u8]) -> Result<(), TrainError> {
        let len = (data.len() as u64).to_le_bytes();
        let bytes = [&len[..], &masked(&len).to_le_bytes(), data, &masked(data).to_le_bytes()].concat();
        self.file.write_all(&bytes).map_err(|source| TrainError::Io { path: self.path.clone(), source })
    }
}

/// An event with the current wall time (field 1), the step (field 2), and its content.
fn event(step: usize, what: &[u8]) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut bytes = vec![1 << 3 | 1];
    bytes.extend(now.to_le_bytes());
    bytes.push(2 << 3);
    varint(step as u64, &mut bytes);
    bytes.extend(what);
    bytes
}

/// A field with bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    varint(content.len() as u64, &mut bytes);
    bytes.extend(content);
    bytes
}

fn varint(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// The masked checksum of records.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(step: usize) -> LogLine {
        LogLine::Steps(StepLine {
            step,
            tokens: 10 * step as u64,
            bits_per_token: 2.5,
            divergence: 0.0,
            grad_norm: 1.0,
            learning_rate: 0.5,
            lambda: 1.0,
            tokens_per_second: 100.0,
            skipped: 0,
        })
    }

    #[test]
    fn a_run_that_continues_drops_the_steps_that_it_takes_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut log = Log::open(dir.path(), 0).expect("a log");
        for step in [10, 20, 30] {
            log.add(steps(step)).expect("it is written");
        }
        drop(log);
        // The process died while writing a line.
        let path = dir.path().join(LOG);
        let mut text = fs::read_to_string(&path).expect("it is read");
        text.truncate(text.len() - 20);
        fs::write(&path, text).expect("it is written");
        let mut log = Log::open(dir.path(), 20).expect("a log");
        assert_eq!(log.lines, [steps(10), steps(20)]);
        let evaluation = HeldOutLoss { step: 25, bits_per_token: 2.0, bits_per_byte: None };
        log.add(LogLine::Evaluation(evaluation)).expect("it is written");
        let again = Log::open(dir.path(), 25).expect("a log").lines;
        assert_eq!(again, [steps(10), steps(20), LogLine::Evaluation(evaluation)]);
        assert_eq!(Log::open(dir.path(), 0).expect("a log").lines, []);
    }

    /// JSON has no infinity: in the log as in checkpoints, non-finite values are `null` and can be read again.
    #[test]
    fn numbers_that_are_not_finite_are_read_again() {
        let lines = [f64::NAN, f64::INFINITY].map(|bad| {
            let LogLine::Steps(line) = steps(10) else { unreachable!("steps") };
            let evaluation = HeldOutLoss { step: 10, bits_per_token: bad, bits_per_byte: Some(bad) };
            [
                LogLine::Steps(StepLine { grad_norm: bad, bits_per_token: bad, ..line }),
                LogLine::Evaluation(evaluation),
            ]
        });
        let dir = tempfile::tempdir().expect("a folder");
        let mut log = Log::open(dir.path(), 0).expect("a log");
        for line in lines.concat() {
            log.add(line).expect("it is written");
        }
        let again = Log::open(dir.path(), 10).expect("a log").lines;
        assert_eq!(again.len(), 4, "{again:?}");
        for line in again {
            match line {
                LogLine::Steps(line) => assert!(line.grad_norm.is_nan() && line.bits_per_token.is_nan()),
                LogLine::Evaluation(found) => {
                    assert!(found.bits_per_token.is_nan() && found.bits_per_byte.is_none());
                }
            }
        }
    }

    /// The layout, decoded byte by byte.
    #[test]
    fn events_are_records_of_protocol_buffers() {
        // RFC 3720, B.4, and the mask of TensorFlow's `crc32c.h`.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8A91_36AA);
        let dir = tempfile::tempdir().expect("a folder");
        let mut events = Events::create(dir.path()).expect("a file");
        events.add(300, "a/b", 0.5).expect("it is written");
        let bytes = fs::read(&events.path).expect("it is read");
        let mut rest = &bytes[..];
        let mut records = Vec::new();
        while !rest.is_empty() {
            let (len, after) = rest.split_at(8);
            let n = u64::from_le_bytes(len.try_into().expect("eight bytes")) as usize;
            assert_eq!(after[..4], masked(len).to_le_bytes());
            let (data, sum) = after[4..].split_at(n);
            assert_eq!(sum[..4], masked(data).to_le_bytes());
            records.push(data);
            rest = &sum[4..];
        }
        assert_eq!(records.len(), 2);
        assert_eq!(&records[0][9..], b"\x10\x00\x1a\x0dbrain.Event:2");
        assert_eq!(&records[1][9..], b"\x10\xac\x02\x2a\x0c\x0a\x0a\x0a\x03a/b\x15\x00\x00\x00\x3f");
        assert!(records.iter().all(|record| record[0] == 0x09));
    }
}

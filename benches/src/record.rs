//! What a run leaves behind: a JSON file by machine and date, and the rules of which one is the baseline.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::ceilings::Ceilings;
use crate::figure::Figure;
use crate::machine::{Machine, Software};

/// Everything that one run measured. The field names are the schema of the files under `benches/records/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`SCHEMA`]; another number is refused.
    pub schema: u32,
    /// When the run ended, `2026-11-21T07:31:00Z`.
    pub date: String,
    /// Whether it was a short run of fewer problems.
    pub quick: bool,
    /// Where.
    pub machine: Machine,
    /// What.
    pub software: Software,
    /// Runnable tasks of the last minute, when the run began and when it ended.
    pub load: [f64; 2],
    /// Why the run says nothing; empty when it counts.
    pub void: Vec<String>,
    /// What the machine could do, the best of the run.
    pub ceilings: Vec<Ceilings>,
    /// What was timed.
    pub rows: Vec<Figure>,
}

/// The version of the schema.
pub const SCHEMA: u32 = 1;

impl Record {
    /// Reads a record from its text.
    ///
    /// # Errors
    ///
    /// When it is no JSON of this schema.
    pub fn parse(text: &str) -> Result<Self> {
        let record: Self = serde_json::from_str(text)?;
        ensure!(record.schema == SCHEMA, "schema {}, expected {SCHEMA}", record.schema);
        Ok(record)
    }

    /// The text of its file.
    ///
    /// # Errors
    ///
    /// None for what a run measures.
    pub fn to_text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Where it belongs, relative to the folder of records: `MACHINE/2026-11-21-0731.json`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let minutes: String = self.date.chars().take(16).filter(|&c| c != ':').collect();
        Path::new(&self.machine.id()).join(format!("{}.json", minutes.replace('T', "-")))
    }

    /// The row of these facts.
    #[must_use]
    pub fn row(&self, problem: &str, kernel: &str, isa: &str, threads: usize) -> Option<&Figure> {
        let same =
            |r: &&Figure| r.problem == problem && r.kernel == kernel && r.isa == isa && r.threads == threads;
        self.rows.iter().find(same)
    }
}

/// All records under a folder with their paths relative to it, by date; none when there is no such folder.
///
/// # Errors
///
/// A file that cannot be read or is no record.
pub fn load_all(folder: &Path) -> Result<Vec<(PathBuf, Record)>> {
    let mut records = Vec::new();
    if !folder.exists() {
        return Ok(records);
    }
    for machine in fs::read_dir(folder)? {
        let machine = machine?.path();
        if !machine.is_dir() {
            continue;
        }
        for file in fs::read_dir(&machine)? {
            let file = file?.path();
            if file.extension().is_some_and(|end| end == "json") {
                let text = fs::read_to_string(&file)?;
                let record =
                    Record::parse(&text).with_context(|| format!("{} is no record", file.display()))?;
                records.push((file.strip_prefix(folder)?.to_owned(), record));
            }
        }
    }
    records.sort_by(|(a, x), (b, y)| (&x.date, a).cmp(&(&y.date, b)));
    Ok(records)
}

/// The record that a run on this machine is compared with: the last one that is not void.
#[must_use]
pub fn baseline<'a>(records: &'a [(PathBuf, Record)], machine: &Machine) -> Option<&'a (PathBuf, Record)> {
    let id = machine.id();
    records.iter().rev().find(|(_, record)| record.void.is_empty() && record.machine.id() == id)
}

/// The record that the book shows: the last one of any machine that is not void.
#[must_use]
pub fn newest(records: &[(PathBuf, Record)]) -> Option<&(PathBuf, Record)> {
    records.iter().rev().find(|(_, record)| record.void.is_empty())
}

/// Now, as records write it.
#[must_use]
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds)
}

/// Seconds since 1970 in the calendar (H. Hinnant's days-to-civil, for years from 1970 on).
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::timing::rounded;

    /// A record of two kernels, candle and a model.
    pub(crate) fn example() -> Record {
        let row = |problem: &str, kernel: &str, isa: &str, threads: usize, seconds: f64| Figure {
            problem: problem.into(),
            kernel: kernel.into(),
            isa: isa.into(),
            threads,
            rival: isa == "gemm",
            rounds: 15,
            seconds,
            spread: 0.05,
            macs: 16_777_216,
            bytes: 4_227_072,
            gmac_per_second: rounded(0.016_777_2 / seconds),
            gb_per_second: rounded(0.004_227_07 / seconds),
            share_of_bandwidth: Some(rounded(0.004_227_07 / seconds / 41.0 / threads as f64)),
            share_of_int8_peak: Some(rounded(0.016_777_2 / seconds / 541.0 / threads as f64)),
            x_rival: (isa != "gemm").then_some(rounded(0.002 / seconds)),
            x_ternary: (kernel == "ternary/128 x int8").then_some(0.9),
        };
        let ceilings = |threads: usize| Ceilings {
            threads,
            bytes_per_second: 41e9 * threads as f64,
            bytes_variant: "four streams".into(),
            macs_per_second: 541e9 * threads as f64,
            macs_variant: "vpdpbusd".into(),
        };
        Record {
            schema: SCHEMA,
            date: "2026-11-21T07:31:09Z".into(),
            quick: false,
            machine: Machine::example(),
            software: Software {
                rustc: "rustc 1.95.0".into(),
                commit: "0123456789ab".into(),
                modified: false,
            },
            load: [0.25, 1.5],
            void: Vec::new(),
            ceilings: vec![ceilings(1), ceilings(2)],
            rows: vec![
                row("square m=1", "ternary x int8", "avx512-vnni", 1, 0.000_125),
                row("square m=1", "ternary/128 x int8", "avx512-vnni", 1, 0.000_14),
                row("square m=1", "ternary x int8", "avx512-vnni", 2, 0.000_062_5),
                row("square m=1", "candle f32", "gemm", 1, 0.002),
                row("2b decode", crate::models::MODEL_KERNEL, "avx512-vnni", 1, 0.015_625),
            ],
        }
    }

    #[test]
    fn a_record_survives_its_file() {
        let record = example();
        assert_eq!(Record::parse(&record.to_text().unwrap()).unwrap(), record);
        assert_eq!(
            record.path(),
            Path::new("amd-epyc-family-26-2-cores-avx512-vnni").join("2026-11-21-0731.json")
        );
    }

    #[test]
    fn another_schema_and_unknown_fields_are_refused() {
        let text = example().to_text().unwrap();
        let other = text.replacen("\"schema\": 1", "\"schema\": 2", 1);
        assert_eq!(Record::parse(&other).unwrap_err().to_string(), "schema 2, expected 1");
        let unknown = text.replacen("\"quick\"", "\"slow\"", 1);
        assert!(Record::parse(&unknown).unwrap_err().to_string().contains("unknown field `slow`"));
    }

    #[test]
    fn the_baseline_is_the_last_run_of_the_machine_that_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert!(load_all(&folder.path().join("none")).unwrap().is_empty());
        let at = |day: &str| Record { date: format!("2026-11-{day}T00:00:00Z"), ..example() };
        let void = Record { void: vec!["busy".into()], ..at("23") };
        let elsewhere = Record { machine: Machine { cores: 64, ..Machine::example() }, ..at("24") };
        for record in [&at("21"), &at("22"), &void, &elsewhere] {
            let path = folder.path().join(record.path());
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, record.to_text().unwrap()).unwrap();
        }
        let all = load_all(folder.path()).unwrap();
        let dates: Vec<&str> = all.iter().map(|(_, r)| &r.date[8..10]).collect();
        assert_eq!(dates, ["21", "22", "23", "24"]);
        assert_eq!(baseline(&all, &Machine::example()).unwrap().1, at("22"));
        assert_eq!(newest(&all).unwrap().1, elsewhere);
        let other = Machine { cores: 3, ..Machine::example() };
        assert!(baseline(&all, &other).is_none());
        fs::write(folder.path().join(void.path()), "{}").unwrap();
        assert!(
            load_all(folder.path()).unwrap_err().to_string().contains("2026-11-23-0000.json is no record")
        );
    }

    #[test]
    fn seconds_become_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}

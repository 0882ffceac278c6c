//! Records of runs: JSON files by machine or device and date, and the choice of the baseline among them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::ceiling::Ceiling;
use crate::figure::Figure;
use crate::llama_bench::Engine;
use crate::machine::{DeviceFacts, Machine, Software};

/// Results of one run. The field names are the schema of the files under `benches/records/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`SCHEMA`]; records of another version are rejected.
    pub schema: u32,
    /// Time of the last write, which is the end of a complete run: `2026-11-21T07:31:00Z`.
    pub date: String,
    /// Whether only a part of the catalogue was timed.
    pub quick: bool,
    /// Whether the run finished.
    pub complete: bool,
    /// The host machine.
    pub machine: Machine,
    /// The device that computed; `None` for runs on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceFacts>,
    /// Versions of Trike and of the compiler.
    pub software: Software,
    /// Load average over one minute, at the start and the end of the run.
    pub load: [f64; 2],
    /// Reasons why the measurements are invalid; empty for a valid run.
    pub void: Vec<String>,
    /// Measured peak rates of the machine or device, the best of the run.
    pub ceilings: Vec<Ceiling>,
    /// Timed kernels and rivals.
    pub rows: Vec<Figure>,
    /// Other engines that were timed with the same model file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<Engine>,
    /// Rivals that could not be timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<NotRun>,
    /// Kernels of Trike that could not be timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<NotRun>,
}

/// A kernel or rival that could not be timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotRun {
    /// The problem, or `None` for all problems.
    pub problem: Option<String>,
    /// The kernel or rival.
    pub kernel: String,
    /// Error message.
    pub reason: String,
}

/// Version of the record schema.
pub const SCHEMA: u32 = 2;

impl Record {
    /// Parses a record.
    ///
    /// # Errors
    ///
    /// If `text` is not JSON of this schema.
    pub fn parse(text: &str) -> Result<Self> {
        /// The only field common to all schema versions.
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } = serde_json::from_str(text)?;
        ensure!(schema == SCHEMA, "expected schema {SCHEMA}, got {schema}");
        Ok(serde_json::from_str(text)?)
    }

    /// Serializes the record as JSON.
    ///
    /// # Errors
    ///
    /// If serialization fails, which does not happen for measured values.
    pub fn to_text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Replaces the file atomically, so that concurrent readers always see a whole record.
    ///
    /// # Errors
    ///
    /// If the file or its folder cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let beside = file.with_extension("tmp");
        let write = || -> Result<()> {
            if let Some(folder) = file.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&beside, self.to_text()?)?;
            Ok(fs::rename(&beside, file)?)
        };
        write().with_context(|| format!("cannot write {}", file.display()))
    }

    /// Whether it can be a baseline and be shown: a complete, full run that is not void.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.complete && !self.quick && self.void.is_empty()
    }

    /// Folder name of its records: that of the device if present, else of the machine.
    #[must_use]
    pub fn id(&self) -> String {
        self.device.as_ref().map_or_else(|| self.machine.id(), DeviceFacts::id)
    }

    /// Instruction set of most of its rows: the machine's best one, or the device's runtime.
    #[must_use]
    pub fn isa(&self) -> &str {
        self.device.as_ref().map_or(&self.machine.isa, DeviceFacts::runtime)
    }

    /// Path of its file relative to the folder of records: `MACHINE/2026-11-21-0731.json`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let minutes: String = self.date.chars().take(16).filter(|&c| c != ':').collect();
        Path::new(&self.id()).join(format!("{}.json", minutes.replace('T', "-")))
    }

    /// The row with these four keys.
    #[must_use]
    pub fn row(&self, problem: &str, kernel: &str, isa: &str, threads: usize) -> Option<&Figure> {
        let same =
            |r: &&Figure| r.problem == problem && r.kernel == kernel && r.isa == isa && r.threads == threads;
        self.rows.iter().find(same)
    }
}

/// All records under a folder with their paths relative to it, sorted by date; empty if the folder does not exist.
///
/// # Errors
///
/// If a file cannot be read or is not a valid record.
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
                    Record::parse(&text).with_context(|| format!("{} is not a record", file.display()))?;
                records.push((file.strip_prefix(folder)?.to_owned(), record));
            }
        }
    }
    records.sort_by(|(a, x), (b, y)| (&x.date, a).cmp(&(&y.date, b)));
    Ok(records)
}

/// The baseline of a run: the last [valid](Record::counts) record of the same machine or device.
#[must_use]
pub(crate) fn baseline<'a>(records: &'a [(PathBuf, Record)], run: &Record) -> Option<&'a (PathBuf, Record)> {
    let id = run.id();
    records.iter().rev().find(|(_, record)| record.counts() && record.id() == id)
}

/// The record that the book shows: the last [valid](Record::counts) one of any machine, or of any device.
#[must_use]
pub fn newest(records: &[(PathBuf, Record)], on_device: bool) -> Option<&(PathBuf, Record)> {
    records.iter().rev().find(|(_, record)| record.counts() && record.device.is_some() == on_device)
}

/// The current time in UTC, as in [`Record::date`].
#[must_use]
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds)
}

/// Unix time as a UTC date (H. Hinnant's `civil_from_days`, for years from 1970).
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
    use crate::ceiling::Limit;
    use crate::figure::{Bases, Launching, Measured, figures};
    use crate::timing::rounded;
    use trike_core::Cost;

    /// A record of two kernels, candle and a model.
    pub(crate) fn example() -> Record {
        let row = |problem: &str, kernel: &str, isa: &str, threads: usize, seconds: f64| Figure {
            problem: problem.into(),
            kernel: kernel.into(),
            blueprint: String::new(),
            isa: isa.into(),
            threads,
            rival: isa == "gemm",
            rounds: 15,
            seconds,
            spread: 0.05,
            recorded: 0,
            live_seconds: None,
            macs: 16_777_216,
            bytes: 4_227_072,
            gmac_per_second: rounded(0.016_777_2 / seconds),
            gb_per_second: rounded(0.004_227_07 / seconds),
            share_of_bandwidth: Some(rounded(0.004_227_07 / seconds / 41.0 / threads as f64)),
            share_of_int8_peak: Some(rounded(0.016_777_2 / seconds / 541.0 / threads as f64)),
            share_of_f16_peak: None,
            x_rival: (isa != "gemm").then_some(rounded(0.002 / seconds)),
            x_ternary: (kernel == "ternary/128 x int8").then_some(0.9),
        };
        let ceiling = |limit, threads: usize, one: f64, variant: &str| Ceiling {
            limit,
            threads,
            per_second: one * threads as f64,
            variant: variant.into(),
        };
        let of = |threads| {
            [
                ceiling(Limit::Memory, threads, 41e9, "four streams"),
                ceiling(Limit::Int8, threads, 541e9, "vpdpbusd"),
            ]
        };
        Record {
            schema: SCHEMA,
            date: "2026-11-21T07:31:09Z".into(),
            quick: false,
            complete: true,
            machine: Machine::example(),
            device: None,
            software: Software {
                version: "0.1.0".into(),
                rustc: "rustc 1.95.0".into(),
                commit: "0123456789ab".into(),
                modified: false,
            },
            load: [0.25, 1.5],
            void: Vec::new(),
            ceilings: [of(1), of(2)].concat(),
            rows: vec![
                row("square m=1", "ternary x int8", "avx512-vnni", 1, 0.000_125),
                row("square m=1", "ternary/128 x int8", "avx512-vnni", 1, 0.000_14),
                row("square m=1", "ternary x int8", "avx512-vnni", 2, 0.000_062_5),
                row("square m=1", "candle f32", "gemm", 1, 0.002),
                row("2b decode", "model, ternary x int8", "avx512-vnni", 1, 0.015_625),
            ],
            engines: Vec::new(),
            not_run: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// A record of a device.
    pub(crate) fn on_device() -> Record {
        let mut rows = example().rows;
        rows.truncate(2);
        for row in &mut rows {
            (row.isa, row.threads) = ("cuda".into(), 0);
            (row.blueprint, row.share_of_f16_peak) = ("Mma".into(), Some(0.5));
            (row.recorded, row.live_seconds) = (64, Some(0.000_2));
        }
        let absent = NotRun { problem: None, kernel: "cubek f16".into(), reason: "no f16".into() };
        Record { device: Some(DeviceFacts::example()), rows, not_run: vec![absent], ..example() }
    }

    #[test]
    fn a_record_survives_its_file() {
        let engine = Engine { name: "llama.cpp".into(), commit: "0123abc".into(), build: 9000 };
        let beside_engines = Record { engines: vec![engine], ..example() };
        for record in [example(), on_device(), beside_engines] {
            assert_eq!(Record::parse(&record.to_text().unwrap()).unwrap(), record);
        }
        let text = example().to_text().unwrap();
        for absent in [
            "device",
            "blueprint",
            "recorded",
            "live_seconds",
            "share_of_f16_peak",
            "engines",
            "not_run",
            "failures",
        ] {
            assert!(!text.contains(&format!("\"{absent}\"")), "{absent} says nothing on a host");
        }
        let path = |folder: &str| Path::new(folder).join("2026-11-21-0731.json");
        assert_eq!(example().path(), path("amd-epyc-family-26-2-cores-avx512-vnni"));
        assert_eq!(on_device().path(), path("nvidia-h200-cuda"));
        assert_eq!((example().isa(), on_device().isa()), ("avx512-vnni", "cuda"));
    }

    #[test]
    fn measured_figures_survive_a_file_to_the_last_digit() {
        let measured = |kernel: &str, seconds: f64| Measured {
            problem: "ugly m=1".into(),
            kernel: kernel.into(),
            isa: "avx2".into(),
            threads: 1,
            rival: false,
            blueprint: String::new(),
            samples: vec![seconds, 1.1 * seconds, seconds / 3.0],
            cost: Cost { macs: 257_257, bytes: 1_034_060 },
            limits: &[Limit::Memory, Limit::Int8],
            launching: Launching { recorded: 64, live_seconds: Some(seconds * 7.0 / 3.0) },
        };
        let bases = Bases { rival: "candle f32", kernel: "ternary x int8" };
        let all = [measured(bases.kernel, 7.0 / 9e6), measured(bases.rival, 1.0 / 7e3)];
        let rows = figures(&all, &example().ceilings, bases);
        assert!(rows.iter().all(|row| row.share_of_bandwidth.is_some() && row.share_of_int8_peak.is_some()));
        let record = Record { rows, ..example() };
        assert_eq!(Record::parse(&record.to_text().unwrap()).unwrap(), record);
    }

    #[test]
    fn another_schema_and_unknown_fields_are_refused() {
        let text = example().to_text().unwrap();
        assert_eq!(Record::parse("{\"schema\": 1}").unwrap_err().to_string(), "expected schema 2, got 1");
        for (field, other) in [("quick", "slow"), ("rounds", "turns"), ("variant", "loop")] {
            let unknown = text.replacen(&format!("\"{field}\""), &format!("\"{other}\""), 1);
            let error = Record::parse(&unknown).unwrap_err().to_string();
            assert!(error.contains(&format!("unknown field `{other}`")), "{error}");
        }
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new").join("run.json");
        for complete in [false, true] {
            let record = Record { complete, ..on_device() };
            record.write(&file).unwrap();
            assert_eq!(Record::parse(&fs::read_to_string(&file).unwrap()).unwrap(), record);
        }
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing lies beside it");
    }

    #[test]
    fn the_baseline_is_the_last_run_of_the_machine_that_counts() {
        let folder = tempfile::tempdir().unwrap();
        assert!(load_all(&folder.path().join("none")).unwrap().is_empty());
        let at = |day: &str| Record { date: format!("2026-11-{day}T00:00:00Z"), ..example() };
        let void = Record { void: vec!["busy".into()], ..at("23") };
        let elsewhere = Record { machine: Machine { cores: 64, ..Machine::example() }, ..at("24") };
        let device = Record { date: at("25").date, ..on_device() };
        let cut = Record { complete: false, ..at("26") };
        let part = Record { quick: true, ..at("27") };
        for record in [&at("21"), &at("22"), &void, &elsewhere, &device, &cut, &part] {
            record.write(&folder.path().join(record.path())).unwrap();
        }
        let all = load_all(folder.path()).unwrap();
        let dates: Vec<&str> = all.iter().map(|(_, r)| &r.date[8..10]).collect();
        assert_eq!(dates, ["21", "22", "23", "24", "25", "26", "27"]);
        assert_eq!(baseline(&all, &example()).unwrap().1, at("22"));
        assert_eq!(baseline(&all, &on_device()).unwrap().1, device);
        assert_eq!(newest(&all, false).unwrap().1, elsewhere);
        assert_eq!(newest(&all, true).unwrap().1, device);
        let other = Record { machine: Machine { cores: 3, ..Machine::example() }, ..example() };
        assert!(baseline(&all, &other).is_none());
        fs::write(folder.path().join(void.path()), "{}").unwrap();
        assert!(
            load_all(folder.path()).unwrap_err().to_string().contains("2026-11-23-0000.json is not a record")
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

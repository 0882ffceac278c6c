//! Records beside predictions, as the tables of the chapter "Performance on GPUs".

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::catalogue::{Catalogue, Product, Zeros};
use super::rivals::{CUBEK, CUBLAS};
use super::{SCHEMA, predict};

/// Where the generated part of the chapter begins and ends.
const MARKS: [&str; 2] = ["<!-- tables: begin -->", "<!-- tables: end -->"];
/// What a table says where a record has nothing.
const MISSING: &str = "not measured yet";

/// A run on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    head: Value,
    /// Figures by problem and kernel.
    figures: BTreeMap<(String, String), Value>,
    /// Rivals that did not run at all, with the reason.
    absent: BTreeMap<String, String>,
    is_complete: bool,
}

impl Record {
    /// Reads the lines of a record.
    ///
    /// # Errors
    /// When a line is no JSON, or the first one is not that of this schema.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let head: Value = serde_json::from_str(lines.next().context("the record is empty")?)?;
        ensure!(head["schema"] == SCHEMA, "schema {}, expected {SCHEMA}", head["schema"]);
        let mut record = Self { head, figures: BTreeMap::new(), absent: BTreeMap::new(), is_complete: false };
        for line in lines {
            let figure: Value = serde_json::from_str(line)?;
            if figure["end"] == true {
                record.is_complete = true;
                continue;
            }
            let name = |key: &str| figure[key].as_str().map(str::to_owned);
            if let (None, Some(rival), Some(reason)) = (name("problem"), name("kernel"), name("not_run")) {
                record.absent.insert(rival, reason);
                continue;
            }
            let (Some(problem), Some(kernel)) = (name("problem"), name("kernel")) else {
                bail!("a figure without problem or kernel: {line}");
            };
            record.figures.insert((problem, kernel), figure);
        }
        Ok(record)
    }

    /// Whether the chapter shows it: all of the catalogue, to the end, on a device that is no driver of the host.
    pub fn counts(&self) -> bool {
        self.is_complete && self.head["full"] == true && self.head["software"] == false
    }

    /// Whether it has a time of this kernel at this problem.
    pub fn has(&self, problem: &str, kernel: &str) -> bool {
        self.seconds(problem, kernel).is_some()
    }

    fn seconds(&self, problem: &str, kernel: &str) -> Option<f64> {
        let figure = self.figures.get(&(problem.to_owned(), kernel.to_owned()))?;
        Some(figure["microseconds"].as_f64()? / 1e6)
    }

    fn number(&self, problem: &str, kernel: &str, key: &str) -> Option<f64> {
        self.figures.get(&(problem.to_owned(), kernel.to_owned()))?[key].as_f64()
    }

    fn title(&self) -> String {
        let text = |key: &str| self.head[key].as_str().unwrap_or("unknown").to_owned();
        format!(
            "{} ({}), version {}, driver {}",
            text("adapter"),
            text("spec"),
            text("version"),
            text("driver")
        )
    }
}

/// The records under a folder that count, the newest last.
///
/// # Errors
/// A file that is no record.
pub fn load(folder: &Path) -> Result<Vec<(PathBuf, Record)>> {
    let mut records = Vec::new();
    if folder.is_dir() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "jsonl") {
                let text = std::fs::read_to_string(&path)?;
                let record =
                    Record::parse(&text).with_context(|| format!("{} is no record", path.display()))?;
                records.push((path, record));
            }
        }
    }
    records.retain(|(_, record)| record.counts());
    records.sort_by_key(|(path, record)| (record.head["date"].as_u64(), path.clone()));
    Ok(records)
}

/// What the project wants to reach on an H200.
struct Bar {
    what: &'static str,
    problem: &'static str,
    /// The kernels of which the best counts.
    kernels: &'static [&'static str],
    measure: Measure,
    least: f64,
}

enum Measure {
    /// Times as fast as cuBLAS's f16 product.
    OverCublas(Product),
    /// 10^12 operations a second.
    TeraOperations,
    /// Tokens a second.
    Tokens,
}

const TWO_BITS: &[&str] = &["two bits, row scales", "two bits, group128 scales"];
const TRIKE: &[&str] = &["trike"];

const fn square(rows: usize, cols: usize, tokens: usize) -> Measure {
    Measure::OverCublas(Product { rows, cols, tokens, zeros: Zeros::Usual })
}

const BARS: &[Bar] = &[
    Bar {
        what: "4096x14336, one token, over cuBLAS f16",
        problem: "4096x14336 m=1",
        kernels: TWO_BITS,
        measure: square(4096, 14336, 1),
        least: 5.0,
    },
    Bar {
        what: "13824x2560, one token, over cuBLAS f16",
        problem: "13824x2560 m=1",
        kernels: TWO_BITS,
        measure: square(13824, 2560, 1),
        least: 3.2,
    },
    Bar {
        what: "4096x14336, 16 tokens, over cuBLAS f16",
        problem: "4096x14336 m=16",
        kernels: TWO_BITS,
        measure: square(4096, 14336, 16),
        least: 4.5,
    },
    Bar {
        what: "4096x14336, 8192 tokens, over cuBLAS f16",
        problem: "4096x14336 m=8192",
        kernels: TWO_BITS,
        measure: square(4096, 14336, 8192),
        least: 1.0,
    },
    Bar {
        what: "attention, heads of 128, causal, 2048 tokens, TFLOP/s",
        problem: "attention 32/32x128 prefill 2048 batch 8",
        kernels: TRIKE,
        measure: Measure::TeraOperations,
        least: 200.0,
    },
    Bar {
        what: "decode of `2b`, tokens/s",
        problem: "model 2b decode",
        kernels: TRIKE,
        measure: Measure::Tokens,
        least: 400.0,
    },
];

impl Bar {
    fn measured(&self, record: &Record) -> Option<f64> {
        let best = |values: &mut dyn Iterator<Item = f64>| values.reduce(f64::max);
        let mut each = self.kernels.iter().filter_map(|kernel| match self.measure {
            Measure::OverCublas(_) => {
                Some(record.seconds(self.problem, CUBLAS)? / record.seconds(self.problem, kernel)?)
            }
            Measure::TeraOperations => record.number(self.problem, kernel, "tera_operations_per_second"),
            Measure::Tokens => Some(1.0 / record.seconds(self.problem, kernel)?),
        });
        best(&mut each)
    }

    fn predicted(&self, catalogue: &Catalogue) -> Option<f64> {
        let of = |kernel: &str| {
            let all = predict::all(catalogue);
            all.into_iter().find(|(p, k, _)| p == self.problem && k == kernel).map(|(_, _, p)| p.seconds)
        };
        let seconds = self.kernels.iter().filter_map(|kernel| of(kernel)).reduce(f64::min)?;
        Some(match &self.measure {
            Measure::OverCublas(product) => predict::cublas(product).seconds / seconds,
            Measure::TeraOperations => {
                let case = catalogue.attention.iter().find(|a| a.name() == self.problem)?;
                case.operations() as f64 / seconds / 1e12
            }
            Measure::Tokens => 1.0 / seconds,
        })
    }
}

/// Which rows of the catalogue the chapter shows: the others are in the records.
fn is_shown(problem: &str, kernel: &str) -> bool {
    let few = ["m=2", "m=4", "m=8", "m=32", "m=64"];
    let left_out =
        few.iter().any(|m| problem.ends_with(m)) || kernel == TWO_BITS[0] && !problem.contains("zero");
    !left_out && !problem.ends_with("batch 1") && !problem.contains("512 batch")
}

/// The tables: bars, then predictions beside what a record says.
pub fn tables(record: Option<(&str, &Record)>) -> String {
    let catalogue = Catalogue::full();
    let mut text = String::new();
    let _ = match record {
        Some((file, record)) => writeln!(text, "Measured: {}, `{file}`.\n", record.title()),
        None => writeln!(text, "There is no record of an H200 yet, nor of another GPU.\n"),
    };
    let record = record.map(|(_, record)| record);
    text += "| bar | asked | predicted | measured |\n|---|---|---|---|\n";
    for bar in BARS {
        let unit = if matches!(bar.measure, Measure::OverCublas(_)) { "x" } else { "" };
        let show = |value: f64| match unit {
            "x" => format!("{value:.1}x"),
            _ => format!("{value:.0}"),
        };
        let predicted = bar.predicted(&catalogue).map_or("none".to_owned(), show);
        let measured = record.and_then(|r| bar.measured(r)).map_or(MISSING.to_owned(), show);
        let _ = writeln!(text, "| {} | {} | {predicted} | {measured} |", bar.what, show(bar.least));
    }
    text += "\n| problem | kernel | limited by | predicted, us | measured, us | share of copy | share of arithmetic |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for (problem, kernel, prediction) in predict::all(&catalogue) {
        if !is_shown(&problem, &kernel) {
            continue;
        }
        let micros = |seconds: f64| {
            let value = 1e6 * seconds;
            if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
        };
        let seconds = record.and_then(|r| r.seconds(&problem, &kernel));
        let share = |key: &str| {
            let value = record.and_then(|r| r.number(&problem, &kernel, key));
            value.map_or(String::new(), |value| format!("{:.0} %", 100.0 * value))
        };
        let _ = writeln!(
            text,
            "| {problem} | {kernel} | {} | {} | {} | {} | {} |",
            prediction.bound.name(),
            micros(prediction.seconds),
            seconds.map_or(MISSING.to_owned(), micros),
            share("share_of_copy"),
            share("share_of_arithmetic"),
        );
    }
    text + &rivals(record, &catalogue)
}

/// Trike beside the rivals: the time of the best of its kernels, and theirs.
fn rivals(record: Option<&Record>, catalogue: &Catalogue) -> String {
    let mut text =
        "\n| problem | trike, us | cuBLAS f16, us | cubek f16, us | over the best of them |\n".to_owned();
    text += "|---|---|---|---|---|\n";
    let products = catalogue.products.iter().filter(|(product, _)| product.zeros == Zeros::Usual);
    let products = products.map(|(product, _)| product.name());
    let prompts = catalogue.attention.iter().filter(|a| a.tokens > 1).map(super::Attention::name);
    let mut problems: Vec<String> = Vec::new();
    for problem in products.chain(prompts) {
        if is_shown(&problem, "") && !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    for problem in problems {
        let of = |kernel: &str| record.and_then(|r| r.seconds(&problem, kernel));
        let best = |kernels: &[&str]| kernels.iter().filter_map(|k| of(k)).reduce(f64::min);
        let show = |seconds: Option<f64>| seconds.map_or(MISSING.to_owned(), |s| format!("{:.1}", 1e6 * s));
        let own = best(&[TWO_BITS[0], TWO_BITS[1], TRIKE[0]]);
        let over = own
            .zip(best(&[CUBLAS, CUBEK]))
            .map_or(String::new(), |(own, theirs)| format!("{:.1}x", theirs / own));
        // cuBLAS has no attention.
        let cublas = if problem.starts_with("attention") { String::new() } else { show(of(CUBLAS)) };
        let _ = writeln!(text, "| {problem} | {} | {cublas} | {} | {over} |", show(own), show(of(CUBEK)));
    }
    for (rival, reason) in record.iter().flat_map(|record| &record.absent) {
        let _ = writeln!(text, "\n{rival} did not run: {reason}.");
    }
    text
}

/// The chapter with its tables made anew.
///
/// # Errors
/// When the chapter lacks the marks.
pub fn chapter(text: &str, record: Option<(&str, &Record)>) -> Result<String> {
    let [begin, end] = MARKS;
    let (before, rest) = text.split_once(begin).with_context(|| format!("no line {begin}"))?;
    let (_, after) = rest.split_once(end).with_context(|| format!("no line {end}"))?;
    Ok(format!("{before}{begin}\n\n{}\n{end}{after}", tables(record)))
}

/// Writes the tables of the chapter from the newest record under a folder, or says that there is none.
///
/// # Errors
/// When a record or the chapter cannot be read.
pub fn render(records: &Path, file: &Path) -> Result<String> {
    let all = load(records)?;
    let newest = all.last().map(|(path, record)| {
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        (name, record)
    });
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    chapter(&text, newest.as_ref().map(|(name, record)| (name.as_str(), *record)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#"{"schema":1,"date":1,"version":"0.1.0","adapter":"H200","spec":"cuda:0","driver":"580","software":false,"full":true}"#;

    fn figure(problem: &str, kernel: &str, microseconds: f64) -> String {
        format!(
            r#"{{"problem":"{problem}","kernel":"{kernel}","microseconds":{microseconds},"share_of_copy":0.75}}"#
        )
    }

    #[test]
    fn what_a_record_lacks_is_shown_as_missing() {
        let nothing = tables(None);
        assert!(nothing.contains("There is no record of an H200 yet"), "{nothing}");
        let rows = nothing.lines().filter(|line| line.starts_with("| ") && line.contains("m=1 |"));
        assert!(rows.clone().count() > 5 && rows.clone().all(|row| row.contains(MISSING)));
        let lines = [
            HEAD.to_owned(),
            figure("4096x14336 m=1", "two bits, group128 scales", 5.0),
            figure("4096x14336 m=1", CUBLAS, 28.0),
            r#"{"problem":null,"kernel":"cubek f16","not_run":"no f16"}"#.to_owned(),
            r#"{"end":true,"figures":2,"failures":0,"not_run":1}"#.to_owned(),
        ];
        let record = Record::parse(&lines.join("\n")).unwrap();
        assert!(record.counts());
        let some = tables(Some(("h200.jsonl", &record)));
        assert!(
            some.contains("| 4096x14336, one token, over cuBLAS f16 | 5.0x |") && some.contains("| 5.6x |")
        );
        assert!(some.contains("| 5.0 | 75 % |") && some.contains(MISSING), "{some}");
        assert!(some.contains("| 4096x14336 m=1 | 5.0 | 28.0 | not measured yet | 5.6x |"), "{some}");
        assert!(some.contains("cubek f16 did not run: no f16."), "{some}");
    }

    #[test]
    fn records_that_did_not_end_or_ran_on_the_host_do_not_count() {
        assert!(!Record::parse(HEAD).unwrap().counts());
        let end = "\n{\"end\":true}";
        assert!(Record::parse(&format!("{HEAD}{end}")).unwrap().counts());
        let software = HEAD.replace("\"software\":false", "\"software\":true");
        assert!(!Record::parse(&format!("{software}{end}")).unwrap().counts());
        for bad in ["", "{}", r#"{"schema":2}"#, &format!("{HEAD}\n{{\"kernel\":\"x\"}}")] {
            assert!(Record::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bars_ask_for_problems_of_the_catalogue() {
        let catalogue = Catalogue::full();
        for bar in BARS {
            assert!(bar.predicted(&catalogue).is_some(), "{}", bar.what);
        }
    }

    #[test]
    fn the_chapter_shows_the_newest_record_or_that_there_is_none() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = root.join("docs/src/performance.md");
        let text = std::fs::read_to_string(&file).unwrap();
        let rendered = render(&root.join("benches/records/gpu"), &file).unwrap();
        assert!(text == rendered, "repair with: cargo xtask bench-report --gpu --render");
    }
}

//! The chapter of the book that a record becomes: tables and charts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use trike_bench::{
    Align, Chart, Figure, Page, Record, Table, ceilings_text, figure_table, percent, target_table,
    write_pages,
};

use crate::charts::charts;
use crate::models::MODEL_KERNEL;
use crate::operation::OPERATIONS;
use crate::rival::BASES;
use crate::targets::TARGETS;

/// The chapter, under the folder of the book's sources.
pub const CHAPTER: &str = "figures.md";
/// Charts lie in a folder of this name beside it.
const CHARTS: &str = "figures";
/// The book's table of contents.
const SUMMARY: &str = "SUMMARY.md";
/// The chapter that it follows in the summary.
const BEFORE: &str = "(benchmarks.md)";

/// The chapter and its charts. `path` is where the record lies, relative to the folder of records.
#[must_use]
pub fn chapter(record: &Record, path: &Path) -> Vec<Page> {
    let charts: Vec<(&str, Chart)> =
        charts(record).into_iter().filter(|(_, chart)| !chart.is_empty()).collect();
    let mut pages = vec![(CHAPTER.to_owned(), text(record, path, &charts))];
    pages.extend(charts.iter().map(|(name, chart)| (format!("{CHARTS}/{name}.svg"), chart.to_svg())));
    pages
}

/// Writes the chapter into the book's sources, removes charts of earlier ones, and lists it in the summary.
///
/// # Errors
///
/// When a file cannot be written.
pub fn write_chapter(book: &Path, record: &Record, path: &Path) -> Result<()> {
    let charts = book.join(CHARTS);
    if charts.exists() {
        fs::remove_dir_all(&charts)?;
    }
    let summary = fs::read_to_string(book.join(SUMMARY)).context("the book has no summary")?;
    let mut pages = chapter(record, path);
    pages.push((SUMMARY.to_owned(), listed(&summary)));
    write_pages(book, &pages)
}

/// The summary with the chapter in it.
fn listed(summary: &str) -> String {
    let link = format!("({CHAPTER})");
    if summary.contains(&link) {
        return summary.to_owned();
    }
    let mut text = String::new();
    for line in summary.lines() {
        let _ = writeln!(text, "{line}");
        if line.contains(BEFORE) {
            let _ = writeln!(text, "- [Measured figures]{link}");
        }
    }
    text
}

fn text(record: &Record, path: &Path, charts: &[(&str, Chart)]) -> String {
    let Record { machine, software, load, .. } = record;
    let mut text = format!(
        "# Measured figures\n\n\
         `cargo xtask bench-report` wrote this chapter from `benches/records/{}`; what it means is told in\n\
         [Benchmarks](benchmarks.md). Other machines give other figures.\n\n",
        path.display().to_string().replace('\\', "/")
    );
    if !record.void.is_empty() {
        let _ = writeln!(text, "**This run is void:** {}.\n", record.void.join("; "));
    }
    let gib = machine.memory_bytes as f64 / f64::from(1u32 << 30);
    let modified = if software.modified { " with changes" } else { "" };
    let _ = writeln!(
        text,
        "* {}, {} with {}, family {}, best instructions `{}`\n\
         * {:.0} GiB of memory, huge pages `{}`; {}, kernel {}\n\
         * {}, commit `{}`{modified}\n\
         * runnable tasks before and after: {:.1}, {:.1}\n\
         {}",
        record.date,
        machine.cpu,
        if machine.cores == 1 { "1 core".to_owned() } else { format!("{} cores", machine.cores) },
        machine.family,
        machine.isa,
        gib,
        machine.huge_pages,
        machine.os,
        machine.kernel,
        software.rustc,
        software.commit,
        load[0],
        load[1],
        ceilings_text(&record.ceilings)
    );
    let _ = write!(text, "## Targets\n\n{}", target_table(TARGETS, Some(record), None));
    if !charts.is_empty() {
        text.push_str("\n## Charts\n");
    }
    for (name, chart) in charts {
        let _ = write!(text, "\n![{}]({CHARTS}/{name}.svg)\n", chart.title);
    }
    text.push_str("\n## Products\n");
    let problems = || record.rows.chunk_by(|a, b| a.problem == b.problem);
    for rows in problems().filter(|rows| !is_model(&rows[0]) && !is_operation(&rows[0])) {
        let _ = write!(text, "\n### {}\n\n{}", rows[0].problem, figure_table(rows, BASES));
    }
    for (i, rows) in problems().filter(|rows| is_operation(&rows[0])).enumerate() {
        if i == 0 {
            text.push_str("\n## Trits with trits, and attention\n");
        }
        let _ = write!(text, "\n### {}\n\n{}", rows[0].problem, figure_table(rows, BASES));
    }
    let models: Vec<Figure> = record.rows.iter().filter(|row| is_model(row)).cloned().collect();
    if !models.is_empty() {
        let _ = write!(
            text,
            "\n## Models\n\nRandom trits with a scale a row, int8 activations, an int8 head, and a cache in f16. \
             `/s` are tokens a second.\n\n{}",
            model_table(&models)
        );
    }
    text
}

/// Models by their rate: a row is a token.
fn model_table(rows: &[Figure]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("model", Left),
        ("threads", Right),
        ("/s", Right),
        ("spread", Right),
        ("GMAC/s", Right),
        ("GB/s", Right),
        ("of bandwidth", Right),
        ("of int8 peak", Right),
    ]);
    for row in rows {
        let share = |share: Option<f64>| share.map_or("-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
        table.row([
            row.problem.clone(),
            row.threads.to_string(),
            format!("{:.1}", 1.0 / row.seconds),
            percent(row.spread),
            format!("{:.1}", row.gmac_per_second),
            format!("{:.1}", row.gb_per_second),
            share(row.share_of_bandwidth),
            share(row.share_of_int8_peak),
        ]);
    }
    table
}

fn is_model(row: &Figure) -> bool {
    row.kernel == MODEL_KERNEL
}

fn is_operation(row: &Figure) -> bool {
    OPERATIONS.iter().any(|operation| operation.problem() == row.problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{LIMITS, RIVAL_ISA};
    use expect_test::expect;
    use trike_bench::{Ceiling, Limit, Machine, Measured, SCHEMA, Software, figures};
    use trike_cpu::Cost;

    /// Two kernels, candle and a model.
    fn example() -> Record {
        let row = |problem: &str, kernel: &str, isa: &str, threads: usize, seconds: f64| Measured {
            problem: problem.into(),
            kernel: kernel.into(),
            isa: isa.into(),
            threads,
            rival: isa == RIVAL_ISA,
            blueprint: String::new(),
            samples: vec![0.95 * seconds, seconds, 1.05 * seconds],
            cost: Cost { macs: 16_777_216, bytes: 4_227_072 },
            limits: LIMITS,
        };
        let ceiling = |limit, threads: usize, one: f64, variant: &str| Ceiling {
            limit,
            threads,
            per_second: one * threads as f64,
            variant: variant.into(),
        };
        let ceilings: Vec<Ceiling> = [1, 2]
            .into_iter()
            .flat_map(|threads| {
                [
                    ceiling(Limit::Memory, threads, 41e9, "four streams"),
                    ceiling(Limit::Int8, threads, 541e9, "vpdpbusd"),
                ]
            })
            .collect();
        let measured = [
            row("square m=1", "ternary x int8", "avx512-vnni", 1, 0.000_125),
            row("square m=1", "ternary/128 x int8", "avx512-vnni", 1, 0.000_14),
            row("square m=1", "ternary x int8", "avx512-vnni", 2, 0.000_062_5),
            row("square m=1", BASES.rival, RIVAL_ISA, 1, 0.002),
            row("2b decode", MODEL_KERNEL, "avx512-vnni", 1, 0.015_625),
        ];
        Record {
            schema: SCHEMA,
            date: "2026-11-21T07:31:09Z".into(),
            quick: false,
            complete: true,
            machine: Machine {
                cpu: "AMD EPYC".into(),
                vendor: "AuthenticAMD".into(),
                family: 26,
                cores: 2,
                isa: "avx512-vnni".into(),
                memory_bytes: 24 << 30,
                os: "Debian GNU/Linux 12 (bookworm)".into(),
                kernel: "6.1.0".into(),
                huge_pages: "madvise".into(),
            },
            device: None,
            software: Software {
                version: "0.1.0".into(),
                rustc: "rustc 1.95.0".into(),
                commit: "0123456789ab".into(),
                modified: false,
            },
            load: [0.25, 1.5],
            void: Vec::new(),
            rows: figures(&measured, &ceilings, BASES),
            ceilings,
            not_run: Vec::new(),
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_record_becomes_this_chapter() {
        let record = example();
        let pages = chapter(&record, &record.path());
        let names: Vec<&str> = pages.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(names, ["figures.md", "figures/decode.svg", "figures/rivals.svg", "figures/models.svg"]);
        expect![[r#"
            # Measured figures

            `cargo xtask bench-report` wrote this chapter from `benches/records/amd-epyc-family-26-2-cores-avx512-vnni/2026-11-21-0731.json`; what it means is told in
            [Benchmarks](benchmarks.md). Other machines give other figures.

            * 2026-11-21T07:31:09Z, AMD EPYC with 2 cores, family 26, best instructions `avx512-vnni`
            * 24 GiB of memory, huge pages `madvise`; Debian GNU/Linux 12 (bookworm), kernel 6.1.0
            * rustc 1.95.0, commit `0123456789ab`
            * runnable tasks before and after: 0.2, 1.5
            * 1 thread: 41.0 GB/s from memory (four streams), 541 GMAC/s in int8 (vpdpbusd)
            * 2 threads: 82.0 GB/s from memory (four streams), 1082 GMAC/s in int8 (vpdpbusd)

            ## Targets

            | figure | threads | measured | target | reached |
            |---|--:|--:|--:|---|
            | one token, 4096 x 4096, of bandwidth | 1 | 82.5 % | 85.0 % | no |
            | one token, 4096 x 4096, of bandwidth | 2 | 82.5 % | 88.0 % | no |
            | 128 tokens, 4096 x 4096, of int8 peak | 1 | - | 85.0 % | - |
            | 128 tokens, 4096 x 4096, of int8 peak | 2 | - | 85.0 % | - |
            | decode of 2b, of bandwidth | 1 | 0.7 % | 80.0 % | no |
            | decode of 2b, of bandwidth | 2 | - | 80.0 % | - |
            | prefill 512 of 2b, of int8 peak | 1 | - | 72.0 % | - |
            | prefill 512 of 2b, of int8 peak | 2 | - | 72.0 % | - |
            | decode of 125m, of bandwidth | 2 | - | 45.0 % | - |
            | groups of 64 over groups of 256, one token | 1 | - | 0.90x | - |
            | groups of 128 over groups of 256, one token | 1 | - | 0.90x | - |
            | groups of 64 over groups of 256, 128 tokens | 1 | - | 0.90x | - |
            | groups of 128 over groups of 256, 128 tokens | 1 | - | 0.90x | - |
            | 95 % zeros over dense 2 bits, one token | 2 | - | 1.80x | - |
            | 99 % zeros over dense 2 bits, one token | 2 | - | 5.00x | - |
            | half of the blocks zero over dense 2 bits | 2 | - | 1.60x | - |
            | 90 % of the blocks zero over dense 2 bits | 2 | - | 5.00x | - |
            | 1.6 bits over 2 bits, one token | 2 | - | 1.10x | - |
            | avx2 over candle f32, one token | 1 | - | 5.00x | - |
            | avx2 over candle f32, 128 tokens | 1 | - | 1.50x | - |

            ## Charts

            ![One token: share of the memory bandwidth, 4096 x 4096, avx512-vnni](figures/decode.svg)

            ![4096 x 4096 on one thread: times as fast as candle f32](figures/rivals.svg)

            ![Whole models: share of the nearer ceiling](figures/models.svg)

            ## Products

            ### square m=1

            | kernel | isa | threads | time | spread | GMAC/s | GB/s | of bandwidth | of int8 peak | x candle f32 | x 2-bit |
            |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
            | ternary x int8 | avx512-vnni | 1 | 125.0 us | 5 % | 134.2 | 33.8 | 82 % | 25 % | 16.00 | - |
            | ternary/128 x int8 | avx512-vnni | 1 | 140.0 us | 5 % | 119.8 | 30.2 | 74 % | 22 % | 14.29 | 0.89 |
            | ternary x int8 | avx512-vnni | 2 | 62.5 us | 5 % | 268.4 | 67.6 | 82 % | 25 % | - | - |
            | candle f32 | gemm | 1 | 2.00 ms | 5 % | 8.4 | 2.1 | 5 % | 2 % | - | - |

            ## Models

            Random trits with a scale a row, int8 activations, an int8 head, and a cache in f16. `/s` are tokens a second.

            | model | threads | /s | spread | GMAC/s | GB/s | of bandwidth | of int8 peak |
            |---|--:|--:|--:|--:|--:|--:|--:|
            | 2b decode | 1 | 64.0 | 5 % | 1.1 | 0.3 | 0.7 % | 0.2 % |
        "#]].assert_eq(&pages[0].1);
        let again = chapter(&record, &record.path());
        assert_eq!(pages, again);
    }

    #[test]
    fn operations_have_a_section_of_their_own() {
        let mut record = example();
        let name = OPERATIONS[0].problem();
        record.rows.insert(4, Figure { problem: name.clone(), ..record.rows[0].clone() });
        let text = &chapter(&record, &record.path())[0].1;
        let section = format!("\n\n## Trits with trits, and attention\n\n### {name}\n\n| kernel | isa |");
        assert!(text.contains(&section), "{text}");
        assert_eq!(text.matches(&name).count(), 1, "it is no product");
    }

    #[test]
    fn a_void_run_says_so() {
        let record = Record { void: vec!["busy".into(), "hot".into()], ..example() };
        assert!(chapter(&record, &record.path())[0].1.contains("**This run is void:** busy; hot.\n"));
    }

    #[test]
    fn pages_replace_those_of_the_record_before() {
        let book = tempfile::tempdir().unwrap();
        fs::create_dir(book.path().join(CHARTS)).unwrap();
        fs::write(book.path().join("figures/old.svg"), "").unwrap();
        fs::write(book.path().join("SUMMARY.md"), "# Summary\n\n- [B](benchmarks.md)\n- [C](c.md)\n")
            .unwrap();
        let record = example();
        for _ in 0..2 {
            write_chapter(book.path(), &record, &record.path()).unwrap();
            let summary = fs::read_to_string(book.path().join("SUMMARY.md")).unwrap();
            assert_eq!(
                summary,
                "# Summary\n\n- [B](benchmarks.md)\n- [Measured figures](figures.md)\n- [C](c.md)\n"
            );
            assert!(!book.path().join("figures/old.svg").exists());
            assert!(book.path().join("figures/decode.svg").exists());
        }
    }
}

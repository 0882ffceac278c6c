//! Tables of measured and predicted times for the chapter "Performance on GPUs".

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use trike_bench::{
    Align, Judgement, Kept, Page, Record, Table, Zeros, keep, load_all, newest, parse_threshold, percent,
    target_table, with_part, write_pages,
};

use super::catalogue::{Catalogue, ROW_NAME, TRIKE};
use super::predict;
use super::rivals::{CUBEK, CUBLAS};
use super::targets::{TARGETS, predicted};

/// Path of the chapter, relative to the book's sources.
const CHAPTER: &str = "performance.md";
/// Names of its generated parts: times, and counts of machine code.
const PARTS: [&str; 2] = ["tables", "counts"];
/// Table entry for a missing measurement.
const MISSING: &str = "not measured yet";

/// Compares a run with the last one on its device, records it unless it regressed, and updates the book with the newest record.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder of records.
    #[arg(long, default_value = "benches/records")]
    pub records: PathBuf,
    /// Folder of the book's sources.
    #[arg(long, default_value = "docs/src")]
    pub book: PathBuf,
    /// Records of runs, written by `bench --output`, to compare and store.
    #[arg(long = "record", value_name = "FILE", num_args = 1..)]
    pub run: Vec<PathBuf>,
    /// Drop in a row's share of the ceiling and in its speedup over the rival that counts as a regression, in percent.
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = parse_threshold)]
    pub threshold: f64,
    /// Record the run as the new baseline despite regressions.
    #[arg(long, requires = "run")]
    pub accept: bool,
}

/// Returns whether all runs that are given are valid and did not regress.
///
/// # Errors
/// If a record or the chapter cannot be read or written.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Result<bool> {
    let mut is_good = true;
    let mut changed = options.run.is_empty();
    for file in &options.run {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let run = Record::parse(&text).with_context(|| format!("{} is not a record", file.display()))?;
        let judgement = Judgement { threshold: options.threshold, accept: options.accept };
        let kept = keep(&options.records, &load_all(&options.records)?, &run, judgement, &mut say)?;
        is_good &= kept.is_good();
        changed |= kept == Kept::Yes;
    }
    if !changed {
        return Ok(is_good);
    }
    let page = chapter(&options.records, &options.book)?;
    write_pages(&options.book, &[page])?;
    say(&format!("{} shows the newest record of a device", options.book.join(CHAPTER).display()));
    Ok(is_good)
}

/// The chapter with its tables regenerated from the newest record of a device, or from predictions alone if there is none.
///
/// # Errors
/// If a record or the chapter cannot be read.
fn chapter(records: &Path, book: &Path) -> Result<Page> {
    let all = load_all(records)?;
    let file = book.join(CHAPTER);
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let shown = newest(&all, true).map(|(path, record)| (path.as_path(), record));
    let [times, counts] = PARTS;
    let text = with_part(&text, times, &tables(shown))?;
    Ok((CHAPTER.to_owned(), with_part(&text, counts, &predict::counts().to_string())?))
}

/// The tables: targets, predicted and measured times, rivals.
fn tables(shown: Option<(&Path, &Record)>) -> String {
    let catalogue = Catalogue::full();
    let record = shown.map(|(_, record)| record);
    let source = match shown.and_then(|(path, record)| Some((path, record, record.device.as_ref()?))) {
        Some((path, record, device)) => format!(
            "Measured: {} ({}), driver {}, commit `{}`, {}; `benches/records/{}`.",
            device.adapter,
            device.spec,
            device.driver,
            record.software.commit,
            record.date,
            path.display().to_string().replace('\\', "/")
        ),
        None => {
            "There is no full run on an H200 or another GPU yet; [below](#measured-in-part) is what was measured of it.".to_owned()
        }
    };
    let targets = target_table(TARGETS, record, Some(&|target| predicted(target, &catalogue)));
    let mut parts = vec![format!("{source}\n"), targets, predictions(record, &catalogue).to_string()];
    parts.extend(record.map(|record| rivals(record, &catalogue)));
    parts.join("\n")
}

/// Numbers of tokens that are recorded but not shown.
const FEW: &[usize] = &[2, 4, 8, 32, 64];

fn predictions(record: Option<&Record>, catalogue: &Catalogue) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("problem", Left),
        ("kernel", Left),
        ("limited by", Left),
        ("predicted, us", Right),
        ("measured, us", Right),
        ("of bandwidth", Right),
        ("of peak", Right),
    ]);
    let products = catalogue
        .products()
        .filter(|(product, weights)| {
            // Row scales differ little from group scales, and are shown only in the comparison of weight formats.
            let is_usual = product.zeros == Zeros::Trained && weights.name() == ROW_NAME;
            !is_usual && !FEW.contains(&product.tokens)
        })
        .map(|(product, weights)| (product.to_string(), weights.name(), predict::product(&product, weights)));
    let attention = catalogue
        .attention
        .iter()
        .filter(|case| case.batch > 1 && (case.tokens == 1 || case.tokens > 512))
        .map(|case| (case.to_string(), TRIKE.to_owned(), predict::attention(case)));
    let models =
        catalogue.models.iter().flat_map(|model| model.problems().into_iter().zip(predict::model(model)));
    let models = models.map(|(problem, prediction)| (problem, TRIKE.to_owned(), prediction));
    for (problem, kernel, prediction) in products.chain(attention).chain(models) {
        let row = record.and_then(|record| record.row(&problem, &kernel, record.isa(), 0));
        let share = |share: Option<f64>| share.map_or(String::new(), percent);
        table.row([
            problem,
            kernel,
            prediction.bound.name().to_owned(),
            micros(prediction.seconds),
            row.map_or(MISSING.to_owned(), |row| micros(row.seconds)),
            share(row.and_then(|row| row.share_of_bandwidth)),
            share(row.and_then(|row| row.share_of_int8_peak.or(row.share_of_f16_peak))),
        ]);
    }
    table
}

fn micros(seconds: f64) -> String {
    let value = 1e6 * seconds;
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// Comparison with the rivals: times of Trike's fastest two-bit kernel and of each rival.
fn rivals(record: &Record, catalogue: &Catalogue) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("problem", Left),
        ("trike, us", Right),
        ("cuBLAS f16, us", Right),
        ("cubek f16, us", Right),
        ("speedup over the best rival", Right),
    ]);
    let of_products = catalogue.cases.iter().filter(|case| case.zeros == Zeros::Trained).flat_map(|case| {
        let shown = case.tokens().into_iter().filter(|tokens| !FEW.contains(tokens));
        shown.map(|tokens| case.product(tokens).to_string())
    });
    let of_prompts = catalogue.attention.iter().filter(|case| case.batch > 1 && case.tokens > 512);
    for problem in of_products.chain(of_prompts.map(ToString::to_string)) {
        let seconds = |kernel: &&str| Some(record.row(&problem, kernel, record.isa(), 0)?.seconds);
        let best = |kernels: &[&str]| kernels.iter().filter_map(seconds).reduce(f64::min);
        let show = |seconds: Option<f64>| seconds.map_or("-".to_owned(), micros);
        let own = best(&[ROW_NAME, super::catalogue::G128_NAME, TRIKE]);
        let over = own.zip(best(&[CUBLAS, CUBEK]));
        let over = over.map_or("-".to_owned(), |(own, theirs)| format!("{:.1}x", theirs / own));
        table.row([problem.clone(), show(own), show(best(&[CUBLAS])), show(best(&[CUBEK])), over]);
    }
    let mut text = table.to_string();
    for absent in record.not_run.iter().filter(|absent| absent.problem.is_none()) {
        text += &format!("\n{} did not run: {}.\n", absent.kernel, absent.reason);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BASES;
    use crate::bench::catalogue::{G128_NAME, HALVES};
    use trike_bench::{
        Ceiling, DeviceFacts, Launching, Limit, Machine, Measured, NotRun, SCHEMA, Software, figures, now,
    };

    /// Two bits beside cuBLAS at one problem.
    fn example() -> Record {
        let device = DeviceFacts {
            adapter: "NVIDIA H200".into(),
            spec: "cuda:0".into(),
            driver: "580".into(),
            software: false,
            multiprocessors: Some(132),
            memory_bytes: None,
            rotate_mib: 256,
        };
        let product = Catalogue::full().cases[4].product(1);
        let row = |kernel: &str, rival, seconds: f64| Measured {
            problem: product.to_string(),
            kernel: kernel.into(),
            isa: "cuda".into(),
            threads: 0,
            rival,
            blueprint: String::new(),
            samples: vec![seconds; 3],
            cost: product.cost(14_680_064),
            limits: HALVES,
            launching: Launching { recorded: 64, live_seconds: Some(7e-6) },
        };
        let measured = [row(G128_NAME, false, 5e-6), row(CUBLAS, true, 28e-6)];
        let ceiling = Ceiling { limit: Limit::Memory, threads: 0, per_second: 4e12, variant: "copy".into() };
        let absent = NotRun { problem: None, kernel: CUBEK.into(), reason: "no f16".into() };
        Record {
            schema: SCHEMA,
            date: now(),
            quick: false,
            complete: true,
            machine: Machine::detect(""),
            device: Some(device),
            software: Software::detect(Path::new("no such folder")),
            load: [0.0, 0.0],
            void: Vec::new(),
            rows: figures(&measured, std::slice::from_ref(&ceiling), BASES),
            ceilings: vec![ceiling],
            engines: Vec::new(),
            not_run: vec![absent],
            failures: Vec::new(),
        }
    }

    #[test]
    fn what_a_record_lacks_is_shown_as_missing() {
        let nothing = tables(None);
        assert!(nothing.contains("There is no full run on an H200"), "{nothing}");
        let rows = nothing.lines().filter(|line| line.starts_with("| ") && line.contains("m=1 |"));
        assert!(rows.clone().count() > 5 && rows.clone().all(|row| row.contains(MISSING)));
        let record = example();
        let some = tables(Some((Path::new("nvidia-h200-cuda/2026.json"), &record)));
        assert!(some.contains("; `benches/records/nvidia-h200-cuda/2026.json`."), "{some}");
        assert!(
            some.contains("| 4096 x 14336, one token, over cuBLAS f16 | 5.73x | 5.60x | 5.00x | yes |"),
            "{some}"
        );
        assert!(
            some.contains("| down-8b m=1 | two bits, group128 scales | memory | 5.2 | 5.0 | 74 % |  |"),
            "{some}"
        );
        assert!(some.contains(MISSING), "{some}");
        assert!(some.contains("| down-8b m=1 | 5.0 | 28.0 | - | 5.6x |"), "{some}");
        assert!(some.contains("cubek f16 did not run: no f16."), "{some}");
    }

    #[test]
    fn a_run_is_kept_and_shown() {
        let folder = std::env::temp_dir().join(format!("trike-report-{}", std::process::id()));
        let (records, book) = (folder.join("records"), folder.join("book"));
        let options = Options {
            run: vec![folder.join("run.json")],
            records: records.clone(),
            book: book.clone(),
            threshold: 0.1,
            accept: false,
        };
        let parts = PARTS.map(|part| format!("<!-- {part}: begin --><!-- {part}: end -->\n"));
        let page = (CHAPTER.to_owned(), parts.concat());
        write_pages(&book, &[page]).unwrap();
        let run_of = |record: &Record| {
            record.write(&options.run[0]).unwrap();
            let mut said = String::new();
            (run(&options, |line| said += line).unwrap(), said)
        };
        let part = Record { quick: true, ..example() };
        let (is_good, said) = run_of(&part);
        assert!(is_good && said.contains("not recorded"), "{said}");
        let (is_good, said) = run_of(&example());
        assert!(is_good && said.contains("recorded: benches/records/nvidia-h200-cuda"), "{said}");
        assert!(
            std::fs::read_to_string(book.join(CHAPTER)).unwrap().contains("Measured: NVIDIA H200 (cuda:0)")
        );
        let (is_good, said) = run_of(&Record { void: vec!["busy".into()], ..example() });
        assert!(!is_good && said.contains("void: busy"), "{said}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_chapter_shows_the_newest_record_or_that_there_is_none() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let book = root.join("docs/src");
        let (file, rendered) = chapter(&root.join("benches/records"), &book).unwrap();
        let text = std::fs::read_to_string(book.join(file)).unwrap();
        assert!(text == rendered, "fix with: cargo xtask bench-report --gpu --render");
    }
}

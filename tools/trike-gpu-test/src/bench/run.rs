//! State of a benchmark run: interleaved timing, and the record that is extended with each problem.

use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Duration;
use trike_bench::{
    Ceiling, Contender, DeviceFacts, Limit, Machine, Measured, NotRun, Record, SCHEMA, Software,
    figure_table, figures, interleave, load, median, now, raise, rounded,
};
use trike_cpu::Isa;
use trike_cube::{Buffer, Cost, CubeDevice, Products};

use super::entrant::{Absent, Entrant, launches};
use super::{BASES, Options};

/// A benchmark run on a device.
pub(super) struct Run<'a> {
    pub(super) device: &'a CubeDevice,
    pub(super) options: &'a Options,
    /// The file of the record.
    file: Option<PathBuf>,
    say: &'a mut dyn FnMut(&str),
    record: Record,
    /// Samples of problems that are not final yet, because more contenders will be timed at them.
    open: Vec<Measured>,
    /// Number of final rows in the record.
    settled: usize,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        device: &'a CubeDevice,
        options: &'a Options,
        file: Option<PathBuf>,
        say: &'a mut dyn FnMut(&str),
    ) -> Self {
        let capabilities = device.capabilities();
        let software = device.is_software();
        let facts = DeviceFacts {
            adapter: device.name().to_owned(),
            spec: device.spec().to_string(),
            driver: driver(),
            software,
            multiprocessors: capabilities.multiprocessors,
            memory_bytes: capabilities.memory_bytes,
            rotate_mib: options.rotate_mib,
        };
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let void = software.then(|| format!("{} is a software device", facts.adapter));
        let record = Record {
            schema: SCHEMA,
            date: now(),
            quick: options.tiny || options.filter.is_some(),
            complete: false,
            machine: Machine::detect(Isa::detect().name()),
            device: Some(facts),
            software: Software::detect(sources.as_ref()),
            load: [load(), 0.0],
            void: void.into_iter().collect(),
            ceilings: Vec::new(),
            rows: Vec::new(),
            engines: Vec::new(),
            not_run: Vec::new(),
            failures: Vec::new(),
        };
        Self { device, options, file, say, record, open: Vec::new(), settled: 0 }
    }

    /// Records a kernel or rival that could not be timed.
    pub(super) fn absent(&mut self, absent: Absent) {
        let Absent { problem, kernel, rival, error } = absent;
        let reason = one_line(&error);
        let at = problem.as_deref().unwrap_or("all problems");
        (self.say)(&format!("{at} / {kernel}: {reason}"));
        let list = if rival { &mut self.record.not_run } else { &mut self.record.failures };
        list.push(NotRun { problem, kernel, reason });
    }

    /// Times the contenders interleaved, and writes the record with their figures and those of problems that are not
    /// [final](Self::settle).
    pub(super) fn time(&mut self, entrants: Vec<Result<Entrant<'_>, Absent>>) -> Result<()> {
        let window = Duration::from_millis(self.options.window_ms);
        let (mut contenders, mut facts) = (Vec::new(), Vec::new());
        for entrant in entrants {
            match entrant {
                Ok(Entrant { timed, problem, kernel, blueprint, rival, cost, limits }) => {
                    contenders.push(timed.contender);
                    facts.push((problem, kernel, blueprint, rival, cost, limits, timed.launching));
                }
                Err(absent) => self.absent(absent),
            }
        }
        interleave(&mut contenders, self.options.windows.max(1), window);
        let isa = self.record.isa().to_owned();
        for (contender, (problem, kernel, blueprint, rival, cost, limits, launching)) in
            contenders.into_iter().zip(facts)
        {
            match contender.into_samples() {
                Ok(samples) => {
                    let isa = isa.clone();
                    self.open.push(Measured {
                        problem,
                        kernel,
                        isa,
                        threads: 0,
                        rival,
                        blueprint,
                        samples,
                        cost,
                        limits,
                        launching,
                    });
                }
                Err(error) => self.absent(Absent { problem: Some(problem), kernel, rival, error }),
            }
        }
        self.record.rows.truncate(self.settled);
        // Rows of a problem must be adjacent, regardless of the order of timing.
        let problems: Vec<String> = self.open.iter().map(|row| row.problem.clone()).collect();
        self.open.sort_by_key(|row| problems.iter().position(|problem| *problem == row.problem));
        self.record.rows.extend(figures(&self.open, &self.record.ceilings, BASES));
        self.write()
    }

    /// Makes the rows of the open problems final, and prints them; no more contenders will be timed at these problems.
    pub(super) fn settle(&mut self) {
        let rows = &self.record.rows[self.settled..];
        for rows in rows.chunk_by(|a, b| a.problem == b.problem) {
            (self.say)(&format!("### {}\n\n{}", rows[0].problem, figure_table(rows, BASES)));
        }
        self.settled = self.record.rows.len();
        self.open.clear();
    }

    /// Measures the peak rates of the device, from which all shares are computed.
    pub(super) fn ceilings(&mut self) -> Result<()> {
        let (mut contenders, mut facts) = (Vec::new(), Vec::new());
        let copy = copy(self.device, self.options.rotate_mib << 20);
        let products = Products::ALL.into_iter().filter(|p| p.is_supported(self.device.capabilities()));
        let peaks: Vec<_> = products.map(|products| (products.name(), peak(self.device, products))).collect();
        for (name, probe) in std::iter::once(("copy", copy)).chain(peaks) {
            match probe {
                Ok((limit, per_call, contender)) => {
                    contenders.push(contender);
                    facts.push((name, limit, per_call));
                }
                Err(error) => self.absent(probe_failed(name, error)),
            }
        }
        let window = Duration::from_millis(self.options.window_ms);
        interleave(&mut contenders, self.options.windows.max(1), window);
        for (contender, (name, limit, per_call)) in contenders.into_iter().zip(facts) {
            match contender.into_samples() {
                Ok(samples) => {
                    let seconds = median(&samples).context("no windows were timed")?;
                    let per_second = rounded(per_call as f64 / seconds);
                    // The best variant counts: matrix instructions, or dot products on devices without them.
                    let found = Ceiling { limit, threads: 0, per_second, variant: name.to_owned() };
                    raise(&mut self.record.ceilings, found);
                }
                Err(error) => self.absent(probe_failed(name, error)),
            }
        }
        (self.say)(&trike_bench::ceilings_text(&self.record.ceilings));
        self.write()
    }

    /// Marks the record complete, writes it, and returns it.
    pub(super) fn finish(mut self) -> Result<Record> {
        self.record.complete = true;
        self.write()?;
        Ok(self.record)
    }

    fn write(&mut self) -> Result<()> {
        self.record.date = now();
        self.record.load[1] = load();
        self.file.as_ref().map_or(Ok(()), |file| self.record.write(file))
    }
}

/// A probe of a ceiling: its kind, the bytes or multiply-adds per call, and the contender.
type Probe<'a> = Result<(Limit, u64, Contender<'a>)>;

fn probe_failed(name: &str, error: anyhow::Error) -> Absent {
    Absent { problem: Some("ceilings".to_owned()), kernel: name.to_owned(), rival: false, error }
}

/// A copy of `bytes` bytes, reads and writes together.
fn copy(device: &CubeDevice, bytes: usize) -> Probe<'_> {
    // Half of the bytes are read, half are written.
    let words = bytes / 8;
    let words = words.min((device.capabilities().max_buffer_bytes / 4) as usize).next_multiple_of(4096);
    let from = device.upload(&vec![0x3f80_0000u32; words])?;
    let to: Buffer<u32> = device.empty(words)?;
    let Cost { bytes, .. } = device.probe_copy(&from, &to)?;
    Ok((
        Limit::Memory,
        bytes,
        launches(device, 1, move |_| device.probe_copy(&from, &to).map(drop))?.contender,
    ))
}

/// Products of operands in registers.
fn peak(device: &CubeDevice, products: Products) -> Probe<'_> {
    // 8 cubes per multiprocessor give full occupancy; devices that do not report multiprocessors get 16 cubes.
    let cubes = device.capabilities().multiprocessors.map_or(16, |n| 8 * n as usize);
    let out: Buffer<i32> = device.empty(256 * cubes)?;
    let rounds = if device.is_software() { 4 } else { 4096 };
    let Cost { macs, .. } = device.probe_products(products, rounds, &out)?;
    let limit = if products == Products::F16Mma { Limit::F16 } else { Limit::Int8 };
    Ok((
        limit,
        macs,
        launches(device, 1, move |_| device.probe_products(products, rounds, &out).map(drop))?.contender,
    ))
}

/// The error on one line of at most 300 characters, without its backtrace.
pub(super) fn one_line(error: &anyhow::Error) -> String {
    const LONGEST: usize = 300;
    let text = format!("{error:#}");
    let text = text.split("Backtrace").next().unwrap_or(&text);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LONGEST).collect()
}

/// Version of NVIDIA's driver from `/proc`; empty for other drivers.
fn driver() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_short_line() {
        let error = anyhow::anyhow!("no  library\nhere").context("cuBLAS");
        assert_eq!(one_line(&error), "cuBLAS: no library here");
        assert_eq!(one_line(&anyhow::anyhow!("lost\nBacktrace\n0: main")), "lost");
        assert_eq!(one_line(&anyhow::anyhow!("x".repeat(999))).len(), 300);
    }
}

//! The run phase and the benchmarks on the software Vulkan driver, with little to do: `cargo xtask gpu-test` runs all suites.
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use clap::Parser;
use trike_bench::Record;
use trike_cube::{DeviceSpec, Runtime};
use trike_gpu_test::{bench, run};
use trike_testkit::skip;

/// The software driver; `None` after a line that the test runner counts.
fn software() -> Option<DeviceSpec> {
    let devices = trike_cube::devices();
    let found = devices.iter().find(|d| d.capabilities.as_ref().is_ok_and(|c| c.software && c.f16));
    if found.is_none() {
        skip("no Vulkan driver");
    }
    found.map(|device| device.spec)
}

#[derive(Parser)]
struct Bench {
    #[command(flatten)]
    options: bench::Options,
}

#[test]
fn a_tiny_record_has_every_problem_and_counts_for_nothing() {
    let Some(device) = software() else { return };
    let device = device.to_string();
    let arguments =
        ["bench", "--device", &device, "--software", "--tiny", "--windows", "1", "--window-ms", "1"];
    let file = std::env::temp_dir().join(format!("trike-bench-{}.json", std::process::id()));
    let file = file.display().to_string();
    let options = Bench::parse_from(arguments.into_iter().chain(["--rotate-mib", "1", "-o", &file])).options;
    let mut said = String::new();
    let [(spec, output)] = &options.runs().expect("one device")[..] else { panic!("{options:?}") };
    let record =
        bench::run(&options, *spec, output.clone(), |line| said += line).expect("every problem is timed");
    assert!(record.failures.is_empty(), "{:?}", record.failures);
    assert!(record.complete && !record.counts(), "it ran on the host");
    for (problem, kernel) in bench::Catalogue::tiny().names() {
        let row = record.row(&problem, &kernel, record.isa(), 0);
        assert!(row.is_some_and(|row| row.share().is_some()), "{problem}, {kernel}: {said}");
    }
    let first = &record.rows[0];
    let compared = record.rows.iter().filter(|row| row.problem == first.problem && row.x_ternary.is_some());
    assert!(compared.count() > 2, "kernels of a problem take turns");
    let kept = std::fs::read_to_string(options.output.as_ref().expect("given")).expect("a file");
    assert_eq!(Record::parse(&kept).expect("a record"), record);
    std::fs::remove_file(options.output.expect("given")).expect("it is there");
    let plain = Bench::parse_from(["bench", "--device", &device, "--tiny"]).options;
    let refused = bench::run(&plain, *spec, None, |_| {}).expect_err("figures of the host mean nothing");
    assert!(refused.to_string().contains("is a software device"), "{refused}");
}

#[test]
fn the_run_phase_runs_on_the_software_driver() {
    if software().is_none() {
        return;
    }
    let filter = Some("probe/".to_owned());
    let options = run::Options { runtimes: vec![Runtime::Wgpu], filter, ..run::Options::default() };
    let tally = run::run(&options, |line| println!("{line}"));
    assert!(tally.failures().is_empty(), "{:#?}", tally.failures());
    // The kernels that need nothing, with planes and without, and the adapter's name.
    assert!(tally.passed() > 10, "{tally}");
}

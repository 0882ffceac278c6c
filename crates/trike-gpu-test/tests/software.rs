//! Every suite on the software Vulkan driver, and the compile phase as far as it goes without NVIDIA's compilers.
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use trike_cube::Runtime;
use trike_gpu_test::run;

#[test]
fn every_operation_runs_on_the_software_driver() {
    let there = trike_cube::devices().iter().any(|d| d.capabilities.as_ref().is_ok_and(|c| c.software));
    if !there {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no software Vulkan driver, and CI=true");
        println!("skipped: no software Vulkan driver");
        return;
    }
    let options = run::Options { runtimes: vec![Runtime::Wgpu], ..run::Options::default() };
    let tally = run::run(&options, |line| println!("{line}"));
    assert!(tally.failures().is_empty(), "{:#?}", tally.failures());
    assert!(tally.passed() > 0, "{tally}");
}

//! `--device`: what is not there is refused by its name, and `auto` falls back where there is no GPU.

use crate::harness::{Trike, tiny};

#[test]
fn devices_that_are_none_are_wrong_usage() {
    let trike = Trike::new();
    for (name, part) in
        [("gpu", "--device"), ("cuda:first", "cuda:first"), ("wgpu:4242", "wgpu:4242"), ("cuda:77", "cuda")]
    {
        let output = trike.output(&["run", "-m", &tiny(), "-p", "x", "--device", name]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {error}");
        assert!(error.starts_with("error: ") && error.contains(part), "{name}: {error}");
    }
}

#[test]
fn auto_takes_the_processor_where_there_is_no_gpu_and_says_so() {
    let trike = Trike::new();
    let devices = trike.json(&["doctor", "--json", "--threads", "1"])["devices"].clone();
    let hardware = devices.as_array().unwrap().iter().any(|device| device["software"] == false);
    let args = ["run", "-m", &tiny(), "-p", "Once", "-n", "3", "--device", "auto"];
    let (on_auto, notes) = trike.both(&args);
    if hardware {
        return;
    }
    assert!(notes.contains("running on the processor"), "{notes}");
    assert_eq!(on_auto, trike.stdout(&args[..7]));
}

#[test]
fn a_software_driver_runs_when_it_is_asked_for() {
    let trike = Trike::new();
    let devices = trike.json(&["doctor", "--json", "--threads", "1"])["devices"].clone();
    let software = devices.as_array().unwrap().iter().find(|device| device["software"] == true).cloned();
    let Some(name) = software.as_ref().and_then(|device| device["name"].as_str()) else {
        announce_skip();
        return;
    };
    let common =
        ["run", "-m", &tiny(), "-p", "Once upon a time", "-n", "8", "--activations", "f32", "--kv", "f32"];
    let on_cpu = trike.stdout(&common);
    let on_device = trike.json(&[&common[..], &["--device", name, "--json", "-q"]].concat());
    let text = format!("{}{}", on_device["prompt"].as_str().unwrap(), on_device["text"].as_str().unwrap());
    assert_eq!(text, on_cpu.trim_end_matches('\n'));
    assert!(on_device["backend"].as_str().unwrap().starts_with(name), "{on_device}");
}

#[test]
fn the_memory_plan_adds_up() {
    let trike = Trike::new();
    let plan = trike.json(&["inspect", &tiny(), "--memory", "--json"]);
    let of = |name: &str| plan[name].as_u64().unwrap();
    assert_eq!(of("total"), of("weights") + of("cache") + of("scratch"));
    assert!(of("weights") > 0 && of("cache") > 0 && of("positions") > 0);
    assert!(trike.stdout(&["inspect", &tiny(), "--memory"]).contains("keys and values"));
}

#[expect(clippy::print_stdout, reason = "the test runner counts these lines")]
fn announce_skip() {
    println!("skipped: no Vulkan driver");
}

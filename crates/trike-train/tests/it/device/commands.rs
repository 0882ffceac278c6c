//! Runs from a configuration.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::{Value, json};
use trike_cpu::Cpu;
use trike_testkit::assert_near;
use trike_train::TrainError;
use trike_train::run::{Ended, Run, RunConfig, RunEvent, RunReport};

use super::engine;

/// Files of a model with random weights, and a configuration of 6 steps.
fn config(dir: &Path, output: &str, device: &str) -> RunConfig {
    let file = |wanted: &str| {
        trike_models::TINY.iter().find(|(name, _)| *name == wanted).expect("a file of the model").1
    };
    fs::write(dir.join("tokenizer.json"), file("tokenizer.json")).expect("it is written");
    let mut model: Value = serde_json::from_slice(file("config.json")).expect("JSON");
    for (name, value) in [
        ("hidden_size", 32),
        ("intermediate_size", 64),
        ("num_hidden_layers", 1),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 8),
    ] {
        model[name] = json!(value);
    }
    if let Some(config) = model.as_object_mut() {
        config.remove("quantization_config");
    }
    fs::write(dir.join("config.json"), model.to_string()).expect("it is written");
    let story = |i: usize| format!("Once there was a frog. It had {i} friends. They were happy.");
    let text: Vec<String> = (0..20).map(story).collect();
    fs::write(dir.join("stories.txt"), text.join("\n<|endoftext|>\n")).expect("it is written");
    let path = dir.join(format!("{output}.toml"));
    let text = format!(
        "base_model_config = 'config.json'\ntokenizer = 'tokenizer.json'\nteacher = 'none'\n\
         datasets = [{{ path = 'stories.txt' }}]\noutput_dir = '{output}'\nval_set_size = 0.1\nsequence_len = 32\n\
         learning_rate = 0.01\nmax_steps = 6\neval_steps = 3\nint8_activations = false\ndevice = '{device}'\n"
    );
    fs::write(&path, text).expect("it is written");
    RunConfig::open(&path).expect("a configuration")
}

fn train(config: RunConfig, stop: Option<usize>) -> Result<RunReport, TrainError> {
    let cpu = Cpu::new(1).expect("a thread");
    Run::open(config)?.train(&cpu, &mut |event| match event {
        RunEvent::Step { report, .. } if Some(report.step + 1) == stop => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    })
}

#[test]
fn a_configuration_names_the_device() {
    let Some(engine) = engine() else { return };
    let name = engine.device().spec().to_string();
    let dir = tempfile::tempdir().expect("a folder");
    let host = train(config(dir.path(), "host", "cpu"), None).expect("a run");
    let device = train(config(dir.path(), "device", &name), None).expect("a run");
    let bits = |report: &RunReport| report.best.expect("held-out text").bits_per_token;
    assert_near!(bits(&device), bits(&host), rel = 1e-3);
    assert!(dir.path().join("device").join("model.safetensors").exists());
    assert!(bits(&device) < 0.9 * device.start.expect("held-out text").bits_per_token);

    let refused = train(RunConfig { bf16: true, ..config(dir.path(), "half", &name) }, None);
    let problem = refused.expect_err("a device has f32 only").to_string();
    assert!(problem.contains("bf16") && problem.contains("cpu"), "{problem}");

    // Interrupted on the device, continued on the host.
    let first = train(config(dir.path(), "both", &name), Some(3)).expect("a run");
    assert_eq!((first.ended, first.steps), (Ended::Interrupted, 3));
    let second = train(config(dir.path(), "both", "cpu"), None).expect("it continues");
    assert_eq!((second.ended, second.steps), (Ended::Complete, 6));
    assert_near!(bits(&second), bits(&host), rel = 1e-3);
}

#[test]
fn unknown_devices_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let unknown = train(config(dir.path(), "a", "gpu"), None);
    assert!(
        matches!(&unknown, Err(TrainError::Config { problem }) if problem.contains("gpu")),
        "{unknown:?}"
    );
    let absent = train(config(dir.path(), "b", "wgpu:99"), None).expect_err("no such device");
    assert!(absent.to_string().contains("wgpu:99"), "{absent}");
}

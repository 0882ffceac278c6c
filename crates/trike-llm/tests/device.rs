//! Models on a device, through the library: the software Vulkan driver.
#![cfg(feature = "gpu")]

use trike_llm::{DeviceChoice, GenerateOptions, LlmError, LoadOptions, ModelFile, devices, memory_plan};
use trike_nn::{KvPrecision, KvSpec, NnError, cube::CubeError};
use trike_testkit::shared;

/// The name of a software Vulkan driver; `None` after a line that the test runner counts.
fn software() -> Option<DeviceChoice> {
    let found = devices().into_iter().find(|device| device.software && device.name.starts_with("wgpu:"));
    if found.is_none() {
        let needed = std::env::var("CI").as_deref() == Ok("true") && cfg!(feature = "wgpu");
        assert!(!needed, "no software Vulkan driver, and CI=true makes that a failure");
        announce_skip();
    }
    found.map(|device| device.name.parse().expect("its own name"))
}

#[expect(clippy::print_stdout, reason = "the test runner counts these lines")]
fn announce_skip() {
    println!("skipped: no Vulkan driver");
}

#[test]
fn stories260k_tells_its_story_on_a_device() {
    let Some(choice) = software() else { return };
    let Some(path) = shared("data/models/stories260K.bin") else { return };
    let Some(tokenizer) = shared("data/tokenizers/tok512.bin") else { return };
    let Some(golden) = shared("data/golden/stories260K_greedy_200.txt") else { return };
    let file = ModelFile::open(path).expect("a model");
    let options = LoadOptions::default()
        .with_tokenizer(file.tokenizer(Some(&tokenizer)).expect("a tokenizer"))
        .with_sequence(KvSpec::new(KvPrecision::F32, 202));
    let device = choice.open().expect("it is there");
    assert!(!device.is_cpu());
    let model = device.load(&file, &options, &mut |_, _| ()).expect("it loads");
    let text = model.generate("", &GenerateOptions::default().with_max_tokens(200)).expect("a story").text;
    assert!(model.backend().starts_with(&choice.to_string()), "{} and not a fall-back", model.backend());
    assert!(model.device_use().expect("a device").peak > model.weight_bytes() as u64);
    assert_eq!(text, std::fs::read_to_string(golden).expect("text"));
}

#[test]
fn the_plan_is_near_what_is_taken() {
    let Some(choice) = software() else { return };
    for model in ["models/tiny", "data/models/stories260K.bin"] {
        let Some(path) = shared(model) else { return };
        let file = ModelFile::open(path).expect("a model");
        let kv = KvSpec::new(KvPrecision::F32, 64);
        let options = LoadOptions::default().with_sequence(kv);
        let plan = memory_plan(&file, &options, &kv).expect("headers");
        let device = choice.open().expect("it is there");
        let loaded = device.load(&file, &options, &mut |_, _| ()).expect("it loads");
        let taken = loaded.weight_bytes() as u64;
        let memory = loaded.memory(&kv);
        assert_eq!((memory.weights, memory.cache, memory.scratch), (taken, plan.cache, plan.scratch));
        // Norms are in the plan and not in the matrices.
        assert!(
            plan.weights >= taken && plan.weights < taken + taken / 5,
            "{model}: {} for {taken}",
            plan.weights
        );
    }
}

#[test]
fn devices_that_are_not_there_are_refused_by_name() {
    for name in ["wgpu:4242", "cuda:4242", "metal:4242"] {
        let choice: DeviceChoice = name.parse().expect("a name");
        let error = choice.open().expect_err(name);
        assert!(error.to_string().starts_with(&format!("device {name}: ")), "{error}");
        let linked = matches!(error, LlmError::Nn(NnError::Cube(CubeError::NoDevice { .. })));
        assert!(linked || matches!(error, LlmError::NotBuilt { .. }), "{error:?}");
    }
}

//! Models on a device, through the library: the software Vulkan driver.
#![cfg(feature = "gpu")]

use trike_cpu::Cpu;
use trike_llm::{
    GenerateOptions, LanguageModel, LlmError, LoadOptions, ModelFile, Place, Use, devices, memory_plan,
};
use trike_nn::{Backend, KvPrecision, KvSpec};
use trike_testkit::shared;

/// The name of a software Vulkan driver; `None` after a line that the test runner counts.
fn software() -> Option<Place> {
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

/// Tells a story.
struct Tell<'a>(&'a GenerateOptions);

impl Use for Tell<'_> {
    type Out = (String, String);

    fn with<B: Backend>(self, model: LanguageModel<B>) -> Self::Out {
        let text = model.generate("", self.0).expect("a story").text;
        (model.decoder().backend().name(), text)
    }
}

#[test]
fn stories260k_tells_its_story_on_a_device() {
    let Some(place) = software() else { return };
    let Some(path) = shared("data/models/stories260K.bin") else { return };
    let Some(tokenizer) = shared("data/tokenizers/tok512.bin") else { return };
    let Some(golden) = shared("data/golden/stories260K_greedy_200.txt") else { return };
    let file = ModelFile::open(path).expect("a model");
    let options = LoadOptions { tokenizer: Some(tokenizer), ..LoadOptions::default() };
    let kv = KvSpec::new(KvPrecision::F32, 202);
    let cpu = Cpu::new(1).expect("a thread");
    let generate = GenerateOptions { max_tokens: Some(200), ..GenerateOptions::default() };
    let opened = place.open().expect("it is there");
    assert!(!opened.is_cpu());
    let told = opened.load(&file, &options, &cpu, &kv, &mut |_, _| (), Tell(&generate));
    let (name, text) = told.expect("it loads");
    assert!(name.starts_with(&place.to_string()), "{name} and not a fall-back");
    assert_eq!(text, std::fs::read_to_string(golden).expect("text"));
}

#[test]
fn the_plan_is_near_what_is_taken() {
    struct Bytes;
    impl Use for Bytes {
        type Out = usize;
        fn with<B: Backend>(self, model: LanguageModel<B>) -> usize {
            model.decoder().weight_bytes()
        }
    }
    let Some(place) = software() else { return };
    for model in ["models/tiny", "data/models/stories260K.bin"] {
        let Some(path) = shared(model) else { return };
        let file = ModelFile::open(path).expect("a model");
        let (options, kv) = (LoadOptions::default(), KvSpec::new(KvPrecision::F32, 64));
        let plan = memory_plan(&file, &options, &kv).expect("headers");
        let cpu = Cpu::new(1).expect("a thread");
        let opened = place.open().expect("it is there");
        let taken = opened.load(&file, &options, &cpu, &kv, &mut |_, _| (), Bytes).expect("it loads") as u64;
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
        let place: Place = name.parse().expect("a name");
        match place.open() {
            Err(LlmError::NoDevice { device, .. }) => assert_eq!(device, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

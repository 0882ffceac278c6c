//! Models on a device, through the library: the software Vulkan driver.
#![cfg(feature = "gpu")]

use crate::common;
use serde_json::json;
use trike_llm::{
    ConvertOptions, DeviceChoice, DeviceShare, GenerateOptions, HeadPrecision, LlmError, LoadOptions,
    ModelFile, Target, convert, devices, memory_plan, open,
};
use trike_nn::{ActivationPrecision, KvPrecision, KvSpec, MemoryPlan, NnError, cube::CubeError};
use trike_testkit::{assert_close, golden, skip, storyteller, tiny};

/// The name of a software Vulkan driver; if there is none, `None` after printing a line that the test runner counts.
fn software() -> Option<DeviceChoice> {
    let found = devices().into_iter().find(|device| device.software && device.name.starts_with("wgpu:"));
    if found.is_none() {
        skip("no Vulkan driver");
    }
    found.map(|device| device.name.parse().expect("its own name"))
}

/// A dense checkpoint of llama2.c, and its directory.
fn dense() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("dense.bin");
    storyteller().write_f32(&path);
    (dir, path)
}

#[test]
fn the_bundled_model_tells_its_story_on_a_device() {
    let Some(choice) = software() else { return };
    let golden = golden();
    let file = ModelFile::open(tiny()).expect("a model");
    let options = LoadOptions::default()
        .with_tokenizer(file.tokenizer(None).expect("a tokenizer"))
        .with_activations(ActivationPrecision::F32)
        .with_sequence(KvSpec::new(KvPrecision::F32, 206));
    let device = choice.open().expect("it is there");
    assert!(!device.is_cpu());
    let model = device.load(&file, &options, &mut |_, _| ()).expect("it loads");
    let prompt = "Once upon a time";
    let told =
        model.generate(prompt, &GenerateOptions::default().with_max_tokens(200)).expect("a story").text;
    assert!(model.backend().starts_with(&choice.to_string()), "{} and not a fall-back", model.backend());
    assert!(model.device_use().expect("a device").peak > model.weight_bytes() as u64);
    assert_eq!(format!("{prompt}{told}"), golden.text);
}

#[test]
fn the_factors_of_minicpm_are_those_of_numpy_on_a_device() {
    let factors = json!({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 64});
    agrees_with_numpy("MiniCPMForCausalLM", 2, factors);
}

#[test]
fn layers_without_rope_are_those_of_numpy_on_a_device() {
    agrees_with_numpy("SmolLM3ForCausalLM", 4, json!({}));
}

/// Compares the logits of a random directory and GGUF file on the software driver with the NumPy script.
fn agrees_with_numpy(architecture: &str, layers: usize, more: serde_json::Value) {
    let Some(choice) = software() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let [floats, from, file] = ["floats", "m", "m.gguf"].map(|name| dir.path().join(name));
    let mut config = common::config(
        architecture,
        layers,
        113,
        json!({
            "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32,
            "tie_word_embeddings": true,
        }),
    );
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    common::random_checkpoint(&floats, &config, 4, false);
    common::random_checkpoint(&from, &config, 4, true);
    let ids = common::ids(12, 113, 4);
    let Some(want) = common::numpy(&floats, &ids) else { return };
    let options = ConvertOptions::new(Target::Tq2_0);
    convert(&ModelFile::open(&from).expect("a model"), &file, &options, &mut |_, _| ()).expect("it converts");
    for path in [&from, &file] {
        let file = ModelFile::open(path).expect("a model");
        let options = LoadOptions::default()
            .with_activations(ActivationPrecision::F32)
            .with_head(HeadPrecision::AsStored)
            .with_sequence(KvSpec::new(KvPrecision::F32, 16));
        let model = choice.open().and_then(|device| device.load(&file, &options, &mut |_, _| ()));
        let (model, mut got) = (model.expect("it loads"), Vec::new());
        let kv = KvSpec::new(KvPrecision::F32, ids.len());
        model.logits_with(&ids, &kv, &mut |_, row| got.extend_from_slice(row)).expect("logits");
        assert_close(&got, &want, 1e-3);
    }
}

#[test]
fn the_plan_is_near_what_is_taken() {
    let Some(choice) = software() else { return };
    let (_dir, dense) = dense();
    for path in [tiny(), dense] {
        let model = path.display();
        let file = ModelFile::open(&path).expect("a model");
        let kv = KvSpec::new(KvPrecision::F32, 64);
        let options = LoadOptions::default().with_sequence(kv);
        let plan = memory_plan(&file, &options, &kv).expect("headers");
        let device = choice.open().expect("it is there");
        let loaded = device.load(&file, &options, &mut |_, _| ()).expect("it loads");
        let taken = loaded.weight_bytes() as u64;
        let memory = loaded.memory(&kv);
        assert_eq!((memory.weights, memory.cache, memory.scratch), (taken, plan.cache, plan.scratch));
        // Norms are included in the plan but not in the matrices.
        assert!(
            plan.weights >= taken && plan.weights < taken + taken / 5,
            "{model}: {} for {taken}",
            plan.weights
        );
    }
}

/// The software driver opened twice, as one choice.
fn pair(layers: Option<[usize; 2]>) -> Option<DeviceChoice> {
    let DeviceChoice::Numbered(runtime, index) = software()? else { panic!("a number") };
    let share = |i: usize| DeviceShare { runtime, index: index + i, layers: layers.map(|layers| layers[i]) };
    Some(DeviceChoice::Several(vec![share(0), share(1)]))
}

#[test]
fn a_story_from_two_devices_is_that_from_one() {
    let (Some(one), Some(two)) = (software(), pair(None)) else { return };
    let path = tiny();
    let options = GenerateOptions::default().with_max_tokens(24);
    let tell = |choice: &DeviceChoice| {
        let model = open(&path, choice).expect("it loads");
        let story = model.generate("Once upon a time", &options).expect("a story");
        (story.ids, model.device_uses(), model.backend())
    };
    let (want, used, name) = tell(&one);
    assert_eq!((used.len(), &used[0].0), (1, &name));
    let (got, used, name) = tell(&two);
    assert_eq!(got, want);
    assert_eq!(name, format!("{}, {}", used[0].0, used[1].0));
    assert!(used[0].1.transfers == 0 && used[1].1.transfers > 0, "{used:?}");
}

#[test]
fn a_plan_divides_what_one_device_would_hold() {
    let Some(two) = pair(None) else { return };
    let (_dir, dense) = dense();
    for path in [tiny(), dense] {
        let model = path.display();
        let file = ModelFile::open(&path).expect("a model");
        let spec = &file.config().spec;
        let kv = KvSpec::new(KvPrecision::F32, 64);
        let options = LoadOptions::default().with_sequence(kv);
        let whole = memory_plan(&file, &options, &kv).expect("headers");
        let alone = software().expect("a device").open().expect("it is there").plan(&file, &options);
        let [alone] = &alone.expect("it fits")[..] else { panic!("one device") };
        assert_eq!((alone.plan, alone.layers.clone()), (whole, 0..spec.layers));
        let stages = two.open().expect("they are there").plan(&file, &options).expect("it fits");
        let sum = |of: fn(&MemoryPlan) -> u64| stages.iter().map(|stage| of(&stage.plan)).sum::<u64>();
        assert_eq!(sum(|plan| plan.cache), whole.cache);
        // A tied embedding is on both.
        let twice = sum(|plan| plan.weights) - whole.weights;
        assert_eq!(twice > 0, spec.tied_head, "{model}");
        assert_eq!((stages[0].layers.start, stages[1].layers.end), (0, spec.layers));
        assert_eq!(stages[0].layers.end, stages[1].layers.start);
        // The loaded size is close to the plan.
        let loaded = two.open().expect("there").load(&file, &options, &mut |_, _| ()).expect("it loads");
        let (taken, planned) = (loaded.weight_bytes() as u64, sum(|plan| plan.weights));
        assert!(planned >= taken && planned < taken + taken / 5, "{model}: {planned} for {taken}");
        // With given numbers of layers.
        let given = pair(Some([1, spec.layers - 1])).expect("devices").open().expect("there");
        assert_eq!(given.plan(&file, &options).expect("it fits")[0].layers, 0..1);
        let wrong = pair(Some([1, spec.layers])).expect("devices").open().expect("there");
        let refused = wrong.load(&file, &options, &mut |_, _| panic!("nothing is loaded")).err();
        assert!(matches!(refused, Some(LlmError::Nn(NnError::Spec { .. }))), "{refused:?}");
    }
}

#[test]
fn what_one_of_two_devices_cannot_allocate_is_refused_by_its_name() {
    let Some(two) = pair(None) else { return };
    let path = tiny();
    let file = ModelFile::open(&path).expect("a model");
    let options = LoadOptions::default().with_sequence(KvSpec::new(KvPrecision::F32, 1 << 24));
    let device = two.open().expect("they are there");
    let refused =
        device.load(&file, &options, &mut |_, _| panic!("nothing is loaded")).err().expect("refused");
    match &refused {
        LlmError::TooLarge { device, .. } => {
            assert!(device.starts_with("wgpu:") && !device.contains(", wgpu"), "{refused}");
        }
        // A driver that reports its memory.
        LlmError::Nn(NnError::SplitMemory { stages }) => assert_eq!(stages.len(), 2),
        _ => panic!("{refused}"),
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

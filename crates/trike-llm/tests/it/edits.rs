//! Layers edited in a loaded model, compared with models loaded from an edited file.

use std::{fs, path::Path};

use trike_core::Tensor;
use trike_cpu::Cpu;
use trike_format::{HfDir, TensorSource};
use trike_llm::{ConvertOptions, LanguageModel, LlmError, LoadOptions, ModelFile, Target, convert};
use trike_nn::{
    ActivationPrecision, Backend, CpuBackend, KvPrecision, KvSpec, Logits, NnError, Step, WeightName,
};
use trike_trit::{Edit, Trit, TritTensor};

fn logits<B: Backend>(model: &LanguageModel<B>) -> Vec<f32> {
    let decoder = model.decoder();
    let mut sequence = decoder.sequence(KvSpec::new(KvPrecision::F32, 16)).expect("a sequence");
    // A prompt, then single tokens, whose steps a device records.
    let steps: [&[u32]; 5] = [&[1, 5, 2], &[3], &[4], &[5], &[6]];
    steps
        .into_iter()
        .flat_map(|ids| {
            let mut steps = [Step { sequence: &mut sequence, ids }];
            decoder.forward(&mut steps, Logits::All).expect("logits").remove(0)
        })
        .collect()
}

/// Sets trits of a tensor, and returns the inverse edits.
fn set(tensor: &mut TritTensor, edits: &[Edit]) -> Result<Vec<Edit>, LlmError> {
    let set =
        |e: &Edit| Ok(Edit { trit: tensor.set(e.plane, e.row, e.col, e.trit).map_err(NnError::from)?, ..*e });
    let mut undo = edits.iter().map(set).collect::<Result<Vec<_>, LlmError>>()?;
    undo.reverse();
    Ok(undo)
}

fn check<B: Backend>(backend: impl Fn() -> B) {
    let start = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny");
    check_model(&backend, &start);
    // Resident weights in a mapped file.
    let dir = tempfile::TempDir::new().expect("a directory");
    let packed = dir.path().join("packed");
    let options = ConvertOptions::new(Target::Trike).with_packed(true);
    convert(&ModelFile::open(&start).expect("a model"), &packed, &options, &mut |_, _| ())
        .expect("it converts");
    let tiles = HfDir::open(&packed).and_then(|dir| dir.tiles(&WeightName::Key(0).to_string()));
    assert!(tiles.expect("a tensor").is_some());
    check_model(&backend, &packed);
}

fn check_model<B: Backend>(backend: impl Fn() -> B, start: &Path) {
    let dir = tempfile::TempDir::new().expect("a directory");
    for file in fs::read_dir(start).expect("the model") {
        let file = file.expect("a file");
        fs::copy(file.path(), dir.path().join(file.file_name())).expect("a copy");
    }
    let load = |path: &Path| {
        let file = ModelFile::open(path).expect("a model");
        let model = LanguageModel::load_on(backend(), &file, &LoadOptions::default(), &mut |_, _| ());
        (file, model.expect("it loads"))
    };
    let (file, mut model) = load(start);
    let mut undo = Vec::new();
    let mut seen = vec![logits(&model)];
    for name in [WeightName::Key(0), WeightName::Up(1), WeightName::Down(0), WeightName::Key(0)] {
        let ternary = || match file.load(name)? {
            Tensor::Ternary(tensor) => Ok::<_, LlmError>(tensor),
            Tensor::Int8(_) | Tensor::Dense(_) => panic!("{name} is ternary"),
        };
        let tensor = ternary().expect("a tensor");
        let edits: Vec<Edit> = (0..200)
            .map(|i| Edit {
                plane: i % tensor.depth(),
                row: (i * 7 + undo.len()) % tensor.rows(),
                col: i * 13 % tensor.cols(),
                trit: [Trit::P, Trit::N, Trit::Z][i % 3],
            })
            .collect();
        // The same trits in the file and in the resident weights.
        let hf = HfDir::open(dir.path()).expect("a directory");
        let Tensor::Ternary(mut stored) = hf.load(&name.to_string()).expect("a tensor") else {
            panic!("{name}")
        };
        stored.edit(&edits).expect("places");
        hf.overwrite(&name.to_string(), &Tensor::Ternary(stored)).expect("room");
        undo.push((name, model.edit_layer(name, ternary, |tensor| set(tensor, &edits)).expect("an edit")));
        let now = logits(&model);
        assert_eq!(now, logits(&load(dir.path()).1), "{name}");
        assert_ne!(Some(&now), seen.last(), "{name} matters");
        seen.push(now);
    }
    let refused =
        model.edit_layer(WeightName::Head, || Ok::<_, LlmError>(file_tensor()), |tensor| set(tensor, &[]));
    assert!(refused.is_err() && model.replaced_layer(WeightName::Head).is_none(), "no layer of the blocks");
    for (name, edits) in undo.iter().rev() {
        seen.pop();
        let kept = || Ok::<_, LlmError>(file_tensor());
        model.edit_layer(*name, kept, |tensor| set(tensor, edits)).expect("an edit");
        assert_eq!(Some(&logits(&model)), seen.last(), "{name} is as before");
    }
}

/// A tensor that no layer has.
fn file_tensor() -> TritTensor {
    TritTensor::from_trits(1, 1, &[1], trike_trit::Encoding::TwoBit, trike_trit::Scales::tensor(1.0))
        .expect("a trit")
}

#[test]
fn on_the_host() {
    check(|| CpuBackend::new(Cpu::new(2).expect("threads"), ActivationPrecision::Int8PerToken));
}

#[cfg(feature = "gpu")]
#[test]
fn on_a_device() {
    use trike_nn::{
        CubeBackend,
        cube::{CubeDevice, DeviceOptions, DeviceSpec, Planes, Runtime},
    };
    let open = |index| {
        let options = DeviceOptions::default().with_planes(Planes::Forced);
        CubeDevice::open_with(DeviceSpec::Numbered(Runtime::Wgpu, index), options).ok()
    };
    let Some(device) = (0..).map_while(open).find(CubeDevice::is_software) else {
        return trike_testkit::skip("no Vulkan driver");
    };
    check(|| CubeBackend::new(device.clone(), ActivationPrecision::Int8PerToken));
}

//! Loading through a `VarBuilder`, by the checkpoint's own names.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder};
use serde_json::json;
use trike_candle::{
    ActivationPrecision, BitLinear, CandleError, NnError, RmsNorm, SwiGlu, Ternarize, TernaryLinear,
};
use trike_format::{HfDirWriter, Int8Tensor};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Hadamard, Scales, TritTensor};

use super::{close, distance, normal, values};

type Tensors = HashMap<String, Tensor>;

fn builder(tensors: &Tensors, dtype: DType) -> VarBuilder<'static> {
    VarBuilder::from_tensors(tensors.clone(), dtype, &Device::Cpu)
}

fn dense(rng: &mut Rng, name: &str, shape: &[usize]) -> Tensors {
    Tensors::from([(format!("{name}.weight"), normal(rng, shape))])
}

fn load(tensors: &Tensors, cols: usize, rows: usize, how: Ternarize) -> Result<TernaryLinear, CandleError> {
    TernaryLinear::load(cols, rows, builder(tensors, DType::F32).pp("proj"), how)
}

/// Tensors written by Trike's own writer, read back by Candle.
fn written(tensor: &trike_format::Tensor) -> Tensors {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model");
    let mut writer = HfDirWriter::create(&path, json!({})).expect("a writer");
    writer.tensor("proj.weight", tensor).expect("a tensor");
    writer.finish().expect("a model");
    candle_core::safetensors::load(path.join("model.safetensors"), &Device::Cpu).expect("tensors")
}

fn ternary_tensors() -> Vec<TritTensor> {
    let mut rng = Rng::new(31);
    let mut tensors = Vec::new();
    for encoding in Encoding::ALL {
        for granularity in
            [Granularity::Tensor, Granularity::Row].into_iter().chain(GroupSize::ALL.map(Granularity::Group))
        {
            for (depth, coupling) in [(1, Coupling::Free), (3, Coupling::Free), (2, Coupling::Tied)] {
                let (rows, cols) = (1 + rng.below(6), 1 + rng.below(400));
                let planes: Vec<Vec<i8>> = (0..depth).map(|_| rng.trits(rows * cols, 0.4)).collect();
                let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
                let set = granularity.count(rows, cols).expect("a count");
                let sets = if coupling == Coupling::Free { depth } else { 1 };
                let means = (rng.below(2) == 0).then(|| rng.normals(set).into());
                let scales = Scales::new(granularity, rng.normals(set * sets), means);
                let tensor = TritTensor::from_planes(rows, cols, &planes, encoding, coupling, scales);
                tensors.push(tensor.expect("a tensor"));
            }
        }
    }
    tensors
}

#[test]
fn every_packed_form_is_told_from_its_parts() {
    for tensor in ternary_tensors() {
        let parts = written(&tensor.clone().into());
        let layer = load(&parts, tensor.cols(), tensor.rows(), Ternarize::Exact).expect("a layer");
        assert_eq!(values(&layer.dequantize().expect("weights")), tensor.dequantize());
    }
}

#[test]
fn tensors_that_candle_cannot_read_are_in_nobodys_way() {
    let trits = &ternary_tensors()[0];
    let (rows, cols) = (trits.rows(), trits.cols());
    let codes = Int8Tensor::new(2, 8, 4, vec![1; 16], vec![1.0; 4].into()).expect("codes");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("model");
    let mut writer = HfDirWriter::create(&path, json!({})).expect("a writer");
    writer.tensor("proj.weight", &trits.clone().into()).expect("a tensor");
    writer.tensor("embed.weight", &codes.into()).expect("a tensor");
    writer.finish().expect("a model");
    let file = std::fs::read(path.join("model.safetensors")).expect("a file");
    let vb = VarBuilder::from_buffered_safetensors(file, DType::F16, &Device::Cpu).expect("a header");
    let layer = TernaryLinear::load(cols, rows, vb.pp("proj"), Ternarize::Exact).expect("a layer");
    assert_eq!(values(&layer.dequantize().expect("weights")), trits.dequantize());
    let refused = TernaryLinear::load(8, 2, vb.pp("embed"), Ternarize::Exact).expect_err("int8").to_string();
    assert!(refused.contains("embed.weight") && refused.contains("weight.int8"), "{refused}");
}

#[test]
fn another_device_is_refused_before_anything_is_copied() {
    // Without Candle's `cuda` feature this is a dummy device.
    let device = Device::Cuda(candle_core::CudaDevice);
    let tensors = dense(&mut Rng::new(35), "proj", &[4, 40]);
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &device).pp("proj");
    for refused in [
        TernaryLinear::load(40, 4, vb.clone(), Ternarize::Exact).expect_err("CUDA"),
        RmsNorm::load(40, 1e-5, vb).expect_err("CUDA"),
    ] {
        assert!(refused.to_string().contains("device must be the CPU"), "{refused}");
    }
}

#[test]
fn dense_weights_are_rounded_only_when_asked() {
    let mut rng = Rng::new(32);
    let mut tensors = dense(&mut rng, "proj", &[4, 40]);
    let abs_mean = Ternarize::AbsMean(Granularity::Tensor);
    let error = load(&tensors, 40, 4, Ternarize::Exact).expect_err("not ternary");
    assert!(matches!(&error, CandleError::Nn(NnError::Load { name, .. }) if name == "proj.weight"));
    assert!(error.to_string().starts_with("proj.weight: a weight must be -s, 0 or +s exactly"), "{error}");
    let layer = load(&tensors, 40, 4, abs_mean).expect("asked for");
    assert!(layer.bias().is_none());

    // A bias that the checkpoint has is loaded; a lower dtype of the builder does not round the weights.
    tensors.insert("proj.bias".to_owned(), Tensor::new(&[1f32, 2.0, 3.0, 4.0], &Device::Cpu).expect("four"));
    let half = builder(&tensors, DType::F16).pp("proj");
    let biased = TernaryLinear::load(40, 4, half, abs_mean).expect("a layer");
    close(&biased.dequantize().expect("weights"), &layer.dequantize().expect("weights"), 0.0);
    let x = normal(&mut rng, &[2, 40]);
    let want = layer.forward(&x).and_then(|y| y.broadcast_add(&tensors["proj.bias"])).expect("y");
    close(&biased.forward(&x).expect("y"), &want, 1e-6);

    let exact: Tensors = [("proj.weight".to_owned(), layer.dequantize().expect("weights"))].into();
    assert!(load(&exact, 40, 4, Ternarize::Exact).is_ok());
    let bit = BitLinear::load(40, 4, builder(&tensors, DType::F32).pp("proj")).expect("a layer");
    close(&bit.as_linear().dequantize().expect("weights"), &layer.dequantize().expect("weights"), 0.0);
    assert_eq!(layer.activations(), ActivationPrecision::Int8PerToken);
    let float = biased.with_activations(ActivationPrecision::F32);
    assert!(
        distance(&bit.forward(&x).expect("y"), &float.forward(&x).expect("y")) > 1e-4,
        "int8 activations"
    );
}

#[test]
fn rotated_weights_load_as_what_they_stand_for() {
    let mut rng = Rng::new(35);
    let how = Ternarize::Exact;
    for encoding in Encoding::ALL {
        let scales = Scales::new(Granularity::Row, vec![0.5; 3], None);
        let tensor =
            TritTensor::from_trits(3, 96, &rng.trits(3 * 96, 0.5), encoding, scales).expect("a tensor");
        let tensor = tensor.with_rotation(Hadamard::largest(96, 512)).expect("blocks of 32");
        let mut parts = written(&tensor.clone().into());
        let layer = load(&parts, 96, 3, how).expect("a layer");
        let want = Tensor::from_vec(tensor.dequantize(), (3, 96), &Device::Cpu).expect("weights");
        close(&layer.dequantize().expect("weights"), &want, 1e-6);
        let x = normal(&mut rng, &[2, 96]);
        let product = x.matmul(&want.t().expect("a matrix")).expect("y");
        let float = layer.with_activations(ActivationPrecision::F32);
        close(&float.forward(&x).expect("y"), &product, 1e-5);
        // A reader without support for rotations finds no trits.
        assert!(!parts.contains_key("proj.weight.trits"));
        parts.insert("proj.weight.rotation".to_owned(), Tensor::new(&[3u32], &Device::Cpu).expect("one"));
        assert!(load(&parts, 96, 3, how).expect_err("no power of two").to_string().contains("power of two"));
        parts.remove("proj.weight.rotation");
        assert!(load(&parts, 96, 3, how).is_err());
    }
}

#[test]
fn the_mlp_loads_by_name() {
    let mut rng = Rng::new(33);
    let mut tensors = Tensors::new();
    for (name, shape) in [("gate_proj", [12, 8]), ("up_proj", [12, 8]), ("down_proj", [8, 12])] {
        tensors.extend(dense(&mut rng, &format!("mlp.{name}"), &shape));
    }
    let how = Ternarize::AbsMean(Granularity::Row);
    let mlp = |tensors: &Tensors| SwiGlu::load(8, 12, builder(tensors, DType::F32).pp("mlp"), how);
    let (layer, x) = (mlp(&tensors).expect("an MLP"), normal(&mut rng, &[2, 8]));
    let y = layer.forward(&x).expect("y");
    assert_eq!(y.dims(), [2, 8]);
    // The projections take their activation precision from the block.
    let float = layer.clone().with_activations(ActivationPrecision::F32).forward(&x).expect("y");
    assert!(distance(&float, &y) > 1e-4);
    let mut normed = tensors.clone();
    normed.extend(dense(&mut rng, "mlp.ffn_sub_norm", &[12]));
    let refused = mlp(&normed).expect_err("a norm that would be left out").to_string();
    assert!(refused.contains("mlp.ffn_sub_norm.weight"), "{refused}");
    tensors.remove("mlp.up_proj.weight");
    assert!(
        matches!(mlp(&tensors), Err(CandleError::Nn(NnError::Load { name, .. })) if name == "mlp.up_proj.weight")
    );
}

#[test]
fn damaged_or_foreign_weights_are_refused_by_name() {
    let how = Ternarize::AbsMean(Granularity::Tensor);
    let mut rng = Rng::new(34);
    let refuse = |tensors: &Tensors, rows, cols, part: &str| {
        let error = load(tensors, cols, rows, how).expect_err(part);
        assert!(matches!(&error, CandleError::Nn(NnError::Load { name, .. }) if name == "proj.weight"));
        assert!(error.to_string().contains(part), "{error} does not say {part}");
    };
    refuse(&dense(&mut rng, "proj", &[3, 5]), 3, 6, "shape mismatch");
    refuse(&Tensors::new(), 3, 6, "proj.weight");

    let mut foreign = dense(&mut rng, "proj", &[2, 8]);
    foreign.insert("proj.weight_scale".to_owned(), normal(&mut rng, &[1]));
    refuse(&foreign, 2, 8, "weight_scale");

    // Every format, with another shape, without a part, and with a part that is shorter or has other codes.
    for tensor in ternary_tensors() {
        let parts = written(&tensor.clone().into());
        let (rows, cols) = (tensor.rows(), tensor.cols());
        // A few bytes may be valid in another encoding of a wider layer, more are not; compressed rows can end anywhere.
        let few =
            parts["proj.weight.trits"].elem_count() < 64 || tensor.encoding() == Encoding::RowCompressed;
        assert!(few || load(&parts, cols + 64, rows, how).is_err(), "{:?}", tensor.encoding());
        assert!(load(&parts, cols, rows + 1, how).is_err());
        for (name, part) in &parts {
            // Means are optional, and signs distinguish a bitmap from entries only together with offsets.
            let mut fewer = parts.clone();
            fewer.remove(name);
            let optional = name.ends_with("means");
            assert_eq!(load(&fewer, cols, rows, how).is_ok(), optional, "without {name}");

            // Fewer scales along a row are valid for larger groups, so only other parts must be detected.
            let last = part.dims()[part.rank() - 1];
            if last > 1 && (part.rank() < 3 || !name.ends_with("scales")) {
                let mut shorter = parts.clone();
                shorter.insert(name.clone(), part.narrow(part.rank() - 1, 0, last - 1).expect("a part"));
                assert!(load(&shorter, cols, rows, how).is_err(), "{name} of {:?}", tensor.encoding());
            }
        }
        let mut spoiled = parts.clone();
        let trits = &parts["proj.weight.trits"];
        spoiled
            .insert("proj.weight.trits".to_owned(), (trits.ones_like().expect("ones") * 255.0).expect("255"));
        assert!(load(&spoiled, cols, rows, how).is_err() || tensor.encoding() == Encoding::RowCompressed);
    }
}

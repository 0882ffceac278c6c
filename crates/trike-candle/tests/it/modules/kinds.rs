//! Storage of the weights of linear layers: the layouts of ternary ones, and which stay dense.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Linear, Module, VarBuilder};
use trike_candle::{
    ActivationPrecision, BitLinear, CandleError, Layout, LinearKind, NnError, SwiGlu, Ternarize,
    TernarizeOptions, TernaryAttention, TernaryAttentionConfig, TernaryLinear, convert_linear,
    quantize_tensor, shared_cpu,
};
use trike_core::Tensor as Weight;
use trike_cpu::choose_layout;
use trike_nn::{BackendWeights, CpuBackend};
use trike_testkit::Rng;
use trike_trit::{Encoding, Granularity, Scales, TritTensor};

use super::{close, loss, normal, values};

const ABS_MEAN: Ternarize = Ternarize::AbsMean(Granularity::Tensor);

/// Trits for which each host layout is optimal, and that layout.
fn tensors(rng: &mut Rng) -> [(TritTensor, Layout); 4] {
    let (rows, cols) = (64, 1024);
    let scales = || Scales::tensor(0.25);
    let make = |trits: &[i8], encoding| {
        TritTensor::from_trits(rows, cols, trits, encoding, scales()).expect("a tensor")
    };
    let base3 = make(&rng.trits(rows * cols, 0.6), Encoding::Base3);
    let isa = shared_cpu().expect("threads").isa();
    // Blocks of sixteen rows by 32 columns, of which every other one is zero.
    let mut blocks = rng.trits(rows * cols, 0.6);
    for (i, trit) in blocks.iter_mut().enumerate() {
        if (i / cols / 16 + i % cols / 32).is_multiple_of(2) {
            *trit = 0;
        }
    }
    let five_per_byte = if isa.has_vbmi() { Layout::Base3 } else { Layout::TwoBit };
    [
        (make(&rng.trits(rows * cols, 0.6), Encoding::TwoBit), Layout::TwoBit),
        (base3, five_per_byte),
        (make(&rng.trits(rows * cols, 0.05), Encoding::TwoBit), Layout::Sparse),
        (make(&blocks, Encoding::TwoBit), Layout::Blocks),
    ]
}

#[test]
fn layers_take_the_layouts_of_the_decoder() {
    let (mut rng, cpu) = (Rng::new(41), shared_cpu().expect("threads"));
    let backend = CpuBackend::new(cpu.clone(), ActivationPrecision::F32);
    let mut bytes = Vec::new();
    for (trits, want) in tensors(&mut rng) {
        let layer = TernaryLinear::new(&trits, None).expect("a layer");
        assert_eq!(layer.kind(), LinearKind::Ternary(want));
        assert_eq!(choose_layout(&trits, cpu.isa()), want);
        let matrix = backend.load_matrix(Weight::Ternary(trits.clone())).expect("it loads");
        assert_eq!(layer.bytes(), backend.matrix_bytes(&matrix));
        bytes.push(layer.bytes());

        // A layout changes no value of the weights, of a product or of a gradient.
        assert_eq!(values(&layer.dequantize().expect("weights")), trits.dequantize());
        let dense = Linear::new(layer.dequantize().expect("weights"), None);
        let x = Var::from_tensor(&normal(&mut rng, &[3, 1024])).expect("a variable");
        let float = layer.clone().with_activations(ActivationPrecision::F32);
        let (got, expected) = (float.forward(&x).expect("y"), dense.forward(&x).expect("y"));
        close(&got, &expected, 1e-4);
        let grad = |y: &Tensor| loss(y).backward().expect("gradients").get(&x).expect("one").clone();
        close(&grad(&got), &grad(&expected), 1e-4);
        assert_eq!(layer.activations(), ActivationPrecision::Int8PerToken);
        close(&layer.forward(&x).expect("y"), &expected, 0.05);
    }
    assert!(bytes[2] < bytes[0] && bytes[3] < bytes[0], "{bytes:?}");
}

/// A matrix in which one weight is as large as thousands of others together.
fn with_outliers(rng: &mut Rng, shape: &[usize]) -> Tensor {
    let w = normal(rng, shape);
    let mut numbers = values(&w);
    for i in [3, numbers.len() / 2] {
        numbers[i] = 2000.0;
    }
    Tensor::from_vec(numbers, shape, &Device::Cpu).expect("a matrix")
}

#[test]
fn a_matrix_with_outliers_stays_dense() {
    let mut rng = Rng::new(42);
    let (good, bad) = (normal(&mut rng, &[30, 64]), with_outliers(&mut rng, &[30, 64]));
    let bias = normal(&mut rng, &[30]);
    let linear = |w: &Tensor| Linear::new(w.clone(), Some(bias.clone()));
    let (layer, stats) = convert_linear(&linear(&good)).expect("a layer");
    assert_eq!(layer.kind(), LinearKind::Ternary(Layout::TwoBit));
    assert!(stats.relative_error < 0.6, "{stats:?}");

    let (layer, stats) = convert_linear(&linear(&bad)).expect("a layer");
    assert_eq!((layer.kind(), layer.kind().to_string().as_str()), (LinearKind::Dense, "dense"));
    assert!(stats.relative_error > TernarizeOptions::MAX_ERROR, "{stats:?}");
    assert_eq!(layer.bytes(), 4 * 30 * 64);
    // The dense layer equals the original one, whatever the activation precision of ternary weights.
    assert_eq!(values(&layer.dequantize().expect("weights")), values(&bad));
    let x = Var::from_tensor(&normal(&mut rng, &[2, 5, 64])).expect("a variable");
    let want = linear(&bad).forward(&x).expect("y");
    let int8 = layer.clone().with_activations(ActivationPrecision::Int8PerToken);
    assert_eq!([layer.activations(), int8.activations()], [ActivationPrecision::F32; 2]);
    for layer in [layer, int8] {
        let got = layer.forward(&x).expect("y");
        close(&got, &want, 1e-5);
        let grad = |y: &Tensor| loss(y).backward().expect("gradients").get(&x).expect("one").clone();
        close(&grad(&got), &grad(&want), 1e-5);
    }
}

#[test]
fn the_bound_is_the_callers_choice() {
    let mut rng = Rng::new(43);
    let (good, bad) = (normal(&mut rng, &[30, 64]), with_outliers(&mut rng, &[30, 64]));
    let kind = |w: &Tensor, max_error: f32| {
        let how = TernarizeOptions::new(ABS_MEAN).with_max_error(max_error);
        TernaryLinear::from_weight(w, None, how).map(|(layer, _)| layer.kind())
    };
    let ternary = LinearKind::Ternary(Layout::TwoBit);
    assert_eq!(kind(&good, 0.3).expect("a layer"), LinearKind::Dense);
    assert_eq!(kind(&good, 0.6).expect("a layer"), ternary);
    assert_eq!(kind(&bad, f32::INFINITY).expect("a layer"), ternary);
    // The bound itself is allowed.
    let (_, stats) = quantize_tensor(&good, ABS_MEAN).expect("trits");
    assert_eq!(kind(&good, stats.relative_error).expect("a layer"), ternary);
    for refused in [-0.1, f32::NAN] {
        let error = kind(&good, refused).expect_err("no bound");
        assert!(matches!(error, CandleError::Nn(NnError::Spec { field: "max_error", .. })), "{error}");
    }
}

#[test]
fn loading_keeps_outliers_dense_unless_the_model_was_trained_for_trits() {
    let mut rng = Rng::new(44);
    let mut tensors = HashMap::new();
    let names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    for name in names {
        tensors.insert(format!("{name}.weight"), normal(&mut rng, &[32, 32]));
    }
    tensors.insert("up_proj.weight".to_owned(), with_outliers(&mut rng, &[32, 32]));
    tensors.insert("o_proj.weight".to_owned(), with_outliers(&mut rng, &[32, 32]));
    let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);

    let all = TernarizeOptions::new(ABS_MEAN).with_max_error(f32::INFINITY);
    let kind =
        |how: TernarizeOptions| TernaryLinear::load(32, 32, vb.pp("up_proj"), how).expect("a layer").kind();
    assert_eq!(kind(ABS_MEAN.into()), LinearKind::Dense);
    // All weights but the outliers become zero.
    assert_eq!(kind(all), LinearKind::Ternary(Layout::Sparse));
    // A BitNet checkpoint is defined by its trits, whatever its master weights.
    let bit = BitLinear::load(32, 32, vb.pp("up_proj")).expect("a layer");
    assert_eq!(bit.as_linear().kind(), LinearKind::Ternary(Layout::Sparse));

    // Blocks pass the bound on to their projections.
    let x = normal(&mut rng, &[1, 4, 32]);
    let config = TernaryAttentionConfig::new(32, 4);
    let mlp = |how| SwiGlu::load(32, 32, vb.clone(), how).and_then(|m| Ok(m.forward(&x)?)).expect("y");
    let attention =
        |how| TernaryAttention::load(&config, vb.clone(), how).and_then(|m| Ok(m.forward(&x)?)).expect("y");
    for (default, ternary) in [(mlp(ABS_MEAN.into()), mlp(all)), (attention(ABS_MEAN.into()), attention(all))]
    {
        assert!(super::distance(&default, &ternary) > 1.0);
    }
}

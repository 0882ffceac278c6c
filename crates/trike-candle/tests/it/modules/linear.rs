//! `TernaryLinear`, `BitLinear` and `convert_linear`.

use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::{Linear, Module};
use trike_candle::{
    ActivationPolicy, ActivationPrecision, BitLinear, CandleError, NnError, Ternarize, TernaryLinear,
    convert_linear, quantize_tensor,
};
use trike_cpu::{Cpu, CpuError, Isa};
use trike_testkit::{Rng, assert_near};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Scales, TritTensor};

use super::{close, distance, loss, normal, values};

/// Tensors of every kind: one plane, free and tied planes, every granularity, with and without means.
fn tensors(rng: &mut Rng, rows: usize, cols: usize) -> Vec<TritTensor> {
    let planes: Vec<Vec<i8>> = (0..3).map(|_| rng.trits(rows * cols, 0.6)).collect();
    let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
    let group = Granularity::Group(GroupSize::G32);
    let groups = rows * group.groups_per_row(cols);
    let mut make = |planes: &[&[i8]], coupling, granularity, sets, set, means: bool| {
        let means = means.then(|| rng.normals(set).into());
        let scales = Scales::new(granularity, rng.normals(sets * set), means);
        TritTensor::from_planes(rows, cols, planes, Encoding::Base3, coupling, scales).expect("a tensor")
    };
    vec![
        make(&planes[..1], Coupling::Free, Granularity::Tensor, 1, 1, false),
        make(&planes[..2], Coupling::Free, Granularity::Row, 2, rows, false),
        make(&planes, Coupling::Tied, group, 1, groups, true),
    ]
}

/// A layer with f32 activations, equal to a dense one.
fn exact(trits: &TritTensor, bias: Option<Tensor>) -> TernaryLinear {
    TernaryLinear::new(trits, bias).expect("a layer").with_activations(ActivationPrecision::F32)
}

#[test]
fn the_dequantized_linear_layer_agrees() {
    let mut rng = Rng::new(1);
    for (rows, cols) in [(1, 1), (5, 33), (64, 300), (130, 256)] {
        for trits in tensors(&mut rng, rows, cols) {
            for bias in [None, Some(normal(&mut rng, &[rows]))] {
                let layer = exact(&trits, bias.clone());
                assert_eq!((layer.in_features(), layer.out_features()), (cols, rows));
                assert_eq!(values(&layer.dequantize().expect("weights")), trits.dequantize());
                let dense = Linear::new(layer.dequantize().expect("weights"), bias);
                for shape in [vec![1, cols], vec![7, cols], vec![2, 3, cols], vec![2, 1, 3, cols]] {
                    let x = normal(&mut rng, &shape);
                    let want = dense.forward(&x).expect("y");
                    close(&layer.forward(&x).expect("y"), &want, 1e-4);
                }
                // One token without a batch axis, which Candle's layer does not accept.
                let x = normal(&mut rng, &[cols]);
                let want = dense.forward(&x.unsqueeze(0).expect("a row")).and_then(|y| y.squeeze(0));
                close(&layer.forward(&x).expect("y"), &want.expect("y"), 1e-4);
            }
        }
    }
}

/// The default: codes in steps of 1/127 of the absolute maximum of a token, or of a group if the weights have groups.
#[test]
fn activations_are_int8_at_the_granularity_of_the_weights() {
    let mut rng = Rng::new(10);
    let (rows, cols) = (40, 256);
    let matched = [
        ActivationPrecision::Int8PerToken,
        ActivationPrecision::Int8PerToken,
        ActivationPrecision::Int8PerGroup(GroupSize::G32),
    ];
    for (trits, matched) in tensors(&mut rng, rows, cols).into_iter().zip(matched) {
        let layer = TernaryLinear::new(&trits, None).expect("a layer");
        assert_eq!(layer.activations(), matched);
        let x = normal(&mut rng, &[3, cols]);
        let y = layer.forward(&x).expect("y");
        close(&layer.clone().with_activations(matched).forward(&x).expect("y"), &y, 0.0);

        let unit = if matched == ActivationPrecision::Int8PerToken { cols } else { 32 };
        let rounded = x.reshape((3, cols / unit, unit)).and_then(|x| {
            let step = (x.abs()?.max_keepdim(D::Minus1)?.maximum(1e-5)? / 127.0)?;
            x.broadcast_div(&step)?.round()?.broadcast_mul(&step)?.reshape((3, cols))
        });
        let dense = Linear::new(layer.dequantize().expect("weights"), None);
        close(&y, &dense.forward(&rounded.expect("codes")).expect("y"), 1e-4);
        assert!(distance(&exact(&trits, None).forward(&x).expect("y"), &y) > 1e-4);

        // A policy set after a precision replaces it.
        let again =
            layer.with_activations(ActivationPrecision::Int16).with_activations(ActivationPolicy::Int8);
        assert_eq!(again.activations(), matched);
    }
}

#[test]
fn the_dtype_and_the_strides_of_the_input_are_kept() {
    let mut rng = Rng::new(2);
    let trits = &tensors(&mut rng, 20, 70)[1];
    let layer = TernaryLinear::new(trits, Some(normal(&mut rng, &[20]))).expect("a layer");
    for (dtype, bound) in [(DType::F32, 1e-6), (DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        let x = normal(&mut rng, &[4, 70]).to_dtype(dtype).expect("a cast");
        let y = layer.forward(&x).expect("y");
        assert_eq!(y.dtype(), dtype);
        // The only difference is the final rounding.
        let wide = layer.forward(&x.to_dtype(DType::F32).expect("a cast")).expect("y");
        close(&y.to_dtype(DType::F32).expect("a cast"), &wide, bound);
    }
    let x = normal(&mut rng, &[70, 4]);
    let transposed = layer.forward(&x.t().expect("a view")).expect("y");
    let copied = layer.forward(&x.t().and_then(|x| x.contiguous()).expect("a copy")).expect("y");
    close(&transposed, &copied, 0.0);
    let part = layer.forward(&normal(&mut Rng::new(3), &[9, 70]).narrow(0, 4, 2).expect("rows")).expect("y");
    let all = layer.forward(&normal(&mut Rng::new(3), &[9, 70])).expect("y");
    close(&part, &all.narrow(0, 4, 2).expect("rows"), 1e-6);
    let empty = layer.forward(&Tensor::zeros((0, 70), DType::F32, &Device::Cpu).expect("none")).expect("y");
    assert_eq!(empty.dims(), [0, 20]);
}

#[test]
fn gradients_are_those_of_the_dequantized_linear_layer() {
    let mut rng = Rng::new(4);
    for dtype in [DType::F32, DType::F16] {
        for trits in tensors(&mut rng, 12, 70) {
            let before = Var::from_tensor(&normal(&mut rng, &[70, 70])).expect("a variable");
            let bias = Var::from_tensor(&normal(&mut rng, &[12])).expect("a variable");
            let ternary = exact(&trits, Some(bias.as_tensor().clone()));
            let weight = ternary.dequantize().expect("weights").to_dtype(dtype).expect("a cast");
            let bias_cast = bias.to_dtype(dtype).expect("a cast");
            let dense = Linear::new(weight, Some(bias_cast));
            let x = normal(&mut rng, &[2, 3, 70]);
            let grads = |layer: &dyn Module| {
                // An earlier layer, to which the gradient has to propagate.
                let hidden = x.broadcast_matmul(&before).and_then(|h| h.tanh()?.to_dtype(dtype)).expect("h");
                loss(&layer.forward(&hidden).expect("y")).backward().expect("gradients")
            };
            let (got, want) = (grads(&ternary), grads(&dense));
            let bound = if dtype == DType::F32 { 1e-4 } else { 1e-2 };
            for var in [&before, &bias] {
                close(got.get(var).expect("a gradient"), want.get(var).expect("a gradient"), bound);
            }
        }
    }
}

/// The formula of BitNet b1.58 in Candle's operations, straight-through.
fn bit_linear(x: &Tensor, w: &Tensor) -> candle_core::Result<Tensor> {
    let s = w.abs()?.mean_all()?.to_scalar::<f32>()?.max(1e-5);
    let t = (w / f64::from(s))?.round()?.clamp(-1f32, 1f32)?;
    let a = (x.abs()?.max_keepdim(D::Minus1)?.maximum(1e-5)? / 127.0)?;
    let q = x.broadcast_div(&a)?.round()?.clamp(-128f32, 127f32)?.broadcast_mul(&a)?;
    let x = (x + (q - x)?.detach())?;
    x.broadcast_matmul(&(t * f64::from(s))?.t()?)
}

#[test]
fn bit_linear_is_the_formula() {
    let mut rng = Rng::new(5);
    for (rows, cols) in [(3, 8), (40, 200), (64, 1024)] {
        let w = normal(&mut rng, &[rows, cols]);
        let (layer, stats) = BitLinear::from_weight(&w, None).expect("a layer");
        assert!((0.4..0.8).contains(&stats.density), "{stats:?}");
        let x = Var::from_tensor(&normal(&mut rng, &[2, 5, cols])).expect("a variable");
        let (got, want) = (layer.forward(&x).expect("y"), bit_linear(&x, &w).expect("y"));
        close(&got, &want, 1e-4);
        let grad = |y: &Tensor| loss(y).backward().expect("gradients").get(&x).expect("one").clone();
        close(&grad(&got), &grad(&want), 1e-4);

        // Without rounding of the activations, results differ.
        let float = layer.as_linear().clone().with_activations(ActivationPrecision::F32);
        assert!(distance(&float.forward(&x).expect("y"), &got) > 1e-4);
        let (trits, _) = quantize_tensor(&w, Ternarize::AbsMean(Granularity::Tensor)).expect("trits");
        let bias = normal(&mut rng, &[rows]);
        let biased = BitLinear::from_quantized(&trits, Some(bias.clone())).expect("a layer");
        let want = got.broadcast_add(&bias).expect("a sum");
        close(&biased.with_cpu(Cpu::new(1).expect("one")).forward(&x).expect("y"), &want, 1e-6);
        let linear: TernaryLinear = layer.into();
        assert_eq!(linear.activations(), ActivationPrecision::Int8PerToken);
    }
}

#[test]
fn convert_linear_keeps_the_bias_and_reports_what_it_lost() {
    let mut rng = Rng::new(6);
    let (w, bias) = (normal(&mut rng, &[30, 90]), normal(&mut rng, &[30]));
    let (layer, stats) = convert_linear(&Linear::new(w.clone(), Some(bias.clone()))).expect("a layer");
    let ternary = layer.dequantize().expect("weights");
    let norm = |x: &Tensor| x.sqr().and_then(|x| x.sum_all()?.sqrt()?.to_scalar::<f32>()).expect("a norm");
    let error = norm(&(&w - &ternary).expect("a difference")) / norm(&w);
    assert_near!(stats.relative_error, error, abs = 1e-5);
    let nonzero = values(&ternary).iter().filter(|v| **v != 0.0).count();
    assert_eq!(stats.density, nonzero as f32 / 2700.0);
    close(layer.bias().expect("a bias"), &bias, 0.0);

    // Ternarizing a ternary layer again is lossless, and a finer granularity has a smaller error.
    let (_, again) = quantize_tensor(&ternary, Ternarize::Exact).expect("trits");
    assert_eq!(again.relative_error, 0.0);
    let uneven = (w * Tensor::new(&[1f32, 10.0, 100.0], &Device::Cpu)
        .and_then(|s| s.unsqueeze(1)?.repeat((10, 1))?.broadcast_as((30, 90)))
        .expect("scales"))
    .expect("a product");
    let error = |granularity| {
        let (trits, stats) = quantize_tensor(&uneven, Ternarize::AbsMean(granularity)).expect("trits");
        assert_eq!(trits.scales().granularity(), granularity);
        stats.relative_error
    };
    let errors = [Granularity::Tensor, Granularity::Row, Granularity::Group(GroupSize::G32)].map(error);
    assert!(errors[0] > errors[1] && errors[1] > errors[2], "{errors:?}");
}

#[test]
fn exact_takes_the_coarsest_granularity_and_nothing_else() {
    let mut rng = Rng::new(7);
    let (rows, cols) = (4, 300);
    let trits = rng.trits(rows * cols, 0.7);
    let check = |scale: &dyn Fn(usize, usize) -> f32, want| {
        let w = trits.iter().enumerate().map(|(i, &t)| f32::from(t) * scale(i / cols, i % cols));
        let w = Tensor::from_iter(w, &Device::Cpu).and_then(|w| w.reshape((rows, cols))).expect("weights");
        let (tensor, stats) = quantize_tensor(&w, Ternarize::Exact).expect("ternary already");
        assert_eq!((tensor.scales().granularity(), stats.relative_error), (want, 0.0));
        assert_eq!(tensor.dequantize(), values(&w));
    };
    check(&|_, _| 0.3, Granularity::Tensor);
    check(&|r, _| 0.3 + r as f32, Granularity::Row);
    for size in GroupSize::ALL {
        check(&|r, c| 0.3 + (11 * r + c / size.get()) as f32, Granularity::Group(size));
    }
    check(&|_, _| 0.0, Granularity::Tensor);

    let refused = quantize_tensor(&normal(&mut rng, &[rows, cols]), Ternarize::Exact).unwrap_err();
    assert!(refused.to_string().contains("Ternarize::AbsMean"), "{refused}");
}

#[test]
fn every_option_of_the_layer_changes_something() {
    let mut rng = Rng::new(8);
    let trits = &tensors(&mut rng, 8, 300)[0];
    let layer = exact(trits, None);
    let x = normal(&mut rng, &[2, 300]);
    let y = layer.forward(&x).expect("y");
    let mut seen = vec![y.clone()];
    for activations in [ActivationPrecision::Int8PerToken, ActivationPrecision::Int8PerGroup(GroupSize::G32)]
    {
        let other = layer.clone().with_activations(activations).forward(&x).expect("y");
        close(&other, &y, 0.05);
        assert!(seen.iter().all(|y| distance(y, &other) > 1e-4), "{activations:?}");
        seen.push(other);
    }
    // Another executor changes the threads and the instruction set, and only the last bits of a float sum.
    let scalar = Isa::by_name("scalar").expect("always there");
    let scalar = layer.with_cpu(Cpu::with_isa(scalar, 1).expect("one thread"));
    close(&scalar.forward(&x).expect("y"), &y, 1e-5);
    assert!(format!("{scalar:?}").contains("threads: 1"));
}

#[test]
fn what_does_not_fit_is_a_typed_error() {
    let mut rng = Rng::new(9);
    let trits = &tensors(&mut rng, 4, 6)[0];
    let bias = |shape: &[usize]| Some(Tensor::zeros(shape, DType::F32, &Device::Cpu).expect("zeros"));
    assert!(matches!(
        TernaryLinear::new(trits, bias(&[5])),
        Err(CandleError::Nn(NnError::Shape { what: "length of a bias", expected: 4, got: 5 }))
    ));
    assert!(matches!(
        TernaryLinear::new(trits, bias(&[4, 1])),
        Err(CandleError::Nn(NnError::Shape { got: 2, .. }))
    ));
    let ids = Tensor::zeros(4, DType::U32, &Device::Cpu).expect("ids");
    assert!(matches!(
        TernaryLinear::new(trits, Some(ids)),
        Err(CandleError::Nn(NnError::Spec { field: "dtype", .. }))
    ));

    let layer = TernaryLinear::new(trits, None).expect("a layer");
    let message = |x: &Tensor| layer.forward(x).expect_err("a refusal").to_string();
    assert_eq!(message(&normal(&mut rng, &[2, 5])), "input of a ternary linear layer: expected 6, got 5");
    assert!(message(&Tensor::new(1f32, &Device::Cpu).expect("a scalar")).contains("expected 6, got 0"));
    let wide = Tensor::zeros((2, 6), DType::F64, &Device::Cpu).expect("zeros");
    assert_eq!(message(&wide), "dtype must be f32, f16 or bf16, got F64");

    let x = Tensor::full(f32::NAN, (1, 6), &Device::Cpu).expect("NaNs");
    assert!(layer.forward(&x).expect_err("int8 has no NaN").to_string().contains("finite"));
    let float = layer.with_activations(ActivationPrecision::F32);
    assert!(values(&float.forward(&x).expect("NaN passes")).iter().all(|y| y.is_nan()));

    let matrix = |value: f32| Tensor::full(value, (2, 2), &Device::Cpu).expect("a matrix");
    for how in [Ternarize::Exact, Ternarize::AbsMean(Granularity::Tensor)] {
        for value in [f32::NAN, f32::INFINITY] {
            let refused = quantize_tensor(&matrix(value), how);
            assert!(matches!(
                refused,
                Err(CandleError::Nn(NnError::Spec { field: "a weight", rule: "must be finite", .. }))
            ));
        }
        let vector = quantize_tensor(&normal(&mut rng, &[4]), how);
        assert!(matches!(vector, Err(CandleError::Candle(_))));
        let empty = Tensor::zeros((0, 4), DType::F32, &Device::Cpu).expect("nothing");
        assert!(matches!(quantize_tensor(&empty, how), Err(CandleError::Nn(NnError::Tensor(_)))));
    }
    let long = TritTensor::from_trits(
        1,
        (1 << 20) + 1,
        &vec![0; (1 << 20) + 1],
        Encoding::Base3,
        Scales::tensor(1.0),
    );
    let refused = TernaryLinear::new(&long.expect("a tensor"), None);
    assert!(matches!(refused, Err(CandleError::Nn(NnError::Cpu(CpuError::Range { .. })))));
}

//! Latent weights trained by Candle's optimizers.

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{AdamW, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use trike_candle::{BitLinear, LatentBitLinear};
use trike_testkit::{Rng, assert_all_near};

fn random(rng: &mut Rng, rows: usize, cols: usize) -> Tensor {
    let values: Vec<f32> = (0..rows * cols).map(|_| rng.below(2001) as f32 / 1000.0 - 1.0).collect();
    Tensor::from_vec(values, (rows, cols), &Device::Cpu).expect("a tensor")
}

fn flat(x: &Tensor) -> Vec<f32> {
    x.flatten_all().and_then(|x| x.to_vec1()).expect("numbers")
}

#[test]
fn values_are_those_of_the_packed_layer() {
    let mut rng = Rng::new(3);
    for (rows, cols, tokens) in [(1, 1, 1), (5, 37, 3), (64, 128, 7)] {
        let bias = random(&mut rng, 1, rows).squeeze(0).expect("a vector");
        let layer = LatentBitLinear::new(random(&mut rng, rows, cols), Some(bias)).expect("a layer");
        let packed = layer.to_bit_linear().expect("a layer");
        let x = random(&mut rng, tokens, cols);
        let (got, want) = (layer.forward(&x).expect("y"), packed.forward(&x).expect("y"));
        assert_all_near!(&flat(&got), &flat(&want), abs = 1e-5 * cols as f32, "{rows} x {cols}");
        let deep = x.reshape((1, tokens, 1, cols)).expect("a tensor");
        let deep = layer.forward(&deep).expect("y");
        assert_eq!((deep.dims(), flat(&deep)), (&[1, tokens, 1, rows][..], flat(&got)));
    }
}

/// `grad_W = grad_y^T r` and `grad_x = grad_y q`, with the rounded input `r` and the ternary weight `q`.
#[test]
fn gradients_pass_straight_through_both_roundings() {
    let device = Device::Cpu;
    // mean|W| is 0.5; the largest activation is 127, so that codes are the rounded activations.
    let weight = Var::new(&[[0.75f32, -1.0, 0.125], [1.0, 0.0, -0.125]], &device).expect("a variable");
    let bias = Var::new(&[0f32, 1.0], &device).expect("a variable");
    let x = Var::new(&[[127f32, 26.6, -5.4]], &device).expect("a variable");
    let layer =
        LatentBitLinear::new(weight.as_tensor().clone(), Some(bias.as_tensor().clone())).expect("a layer");
    let y = layer.forward(&x).expect("y");
    assert_eq!(flat(&y), [50.0, 64.5]);
    let dy = Tensor::new(&[[2f32, 10.0]], &device).expect("a tensor");
    let gradients = (y * dy).and_then(|y| y.sum_all()).and_then(|y| y.backward()).expect("gradients");
    let of = |var: &Var| flat(gradients.get(var).expect("a gradient"));
    assert_eq!(of(&weight), [254.0, 54.0, -10.0, 1270.0, 270.0, -50.0]);
    assert_eq!(of(&x), [6.0, -1.0, 0.0]);
    assert_eq!(of(&bias), [2.0, 10.0]);
}

#[test]
fn adamw_learns_a_regression() {
    let mut rng = Rng::new(7);
    let (target, _) = BitLinear::from_weight(&random(&mut rng, 8, 16), None).expect("a layer");
    let x = random(&mut rng, 64, 16);
    let want = target.forward(&x).expect("y");
    let mut variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let layer = LatentBitLinear::load(16, 8, vb.pp("layer")).expect("a layer");
    // The initial values of a VarMap are not seeded.
    variables.set_one("layer.weight", random(&mut rng, 8, 16)).expect("weights");
    let rates = ParamsAdamW { lr: 0.02, weight_decay: 0.0, ..ParamsAdamW::default() };
    let mut optimizer = AdamW::new(variables.all_vars(), rates).expect("an optimizer");
    let loss = || {
        let y = layer.forward(&x)?;
        (y - &want)?.sqr()?.mean_all()
    };
    let value = |loss: Tensor| loss.to_scalar::<f32>().expect("a number");
    let before = value(loss().expect("a loss"));
    for step in 0..300 {
        optimizer.set_learning_rate(0.02 * (1.0 - f64::from(step) / 300.0));
        optimizer.backward_step(&loss().expect("a loss")).expect("a step");
    }
    let after = value(loss().expect("a loss"));
    println!("mean squared error {before} before, {after} after");
    assert!(after < 0.1 * before, "{before} before, {after} after");
    // The packed layer equals the trained one.
    let packed = layer.to_bit_linear().expect("a layer").forward(&x).expect("y");
    assert_all_near!(&flat(&packed), &flat(&layer.forward(&x).expect("y")), abs = 1e-4);
}

#[test]
fn what_is_not_a_layer_is_refused() {
    let tensor = |rows, cols| Tensor::zeros((rows, cols), DType::F32, &Device::Cpu).expect("a tensor");
    let weight = || tensor(2, 3);
    assert!(LatentBitLinear::new(weight().flatten_all().expect("a vector"), None).is_err());
    assert!(LatentBitLinear::new(weight(), Some(tensor(1, 2))).is_err());
    let three = tensor(1, 3).squeeze(0).expect("a vector");
    assert!(LatentBitLinear::new(weight(), Some(three)).is_err());
    let integers = weight().to_dtype(DType::U32).expect("integers");
    assert!(LatentBitLinear::new(integers, None).is_err());
    let layer = LatentBitLinear::new(weight(), None).expect("a layer");
    assert!(layer.forward(&tensor(4, 2)).is_err());
    let refused = layer.forward(&tensor(1, 3).affine(1.0, f64::NAN).expect("a tensor"));
    assert!(refused.expect_err("NaN").to_string().contains("activation"));
}

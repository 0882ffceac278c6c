//! The Candle modules against the same computations from Candle's own operations.

use candle_core::{DType, Device, Tensor};
use trike_testkit::{Rng, assert_close};

mod attention;
mod kinds;
mod linear;
mod load;
mod ops;

/// Seeded normals.
fn normal(rng: &mut Rng, shape: &[usize]) -> Tensor {
    Tensor::from_vec(rng.normals(shape.iter().product()), shape, &Device::Cpu).expect("a tensor")
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).and_then(|x| x.flatten_all()?.to_vec1()).expect("values")
}

#[track_caller]
fn close(got: &Tensor, want: &Tensor, bound: f32) {
    assert_eq!(got.shape(), want.shape());
    assert_eq!(got.dtype(), want.dtype());
    assert_close(&values(got), &values(want), bound);
}

/// `max|a - b|`, to show that an option changes something.
fn distance(a: &Tensor, b: &Tensor) -> f32 {
    values(a).iter().zip(values(b)).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
}

/// `sum(y^2)`-like loss with uneven weights, so that no gradient is symmetric by chance.
fn loss(y: &Tensor) -> Tensor {
    let weights = normal(&mut Rng::new(99), y.dims());
    (y.to_dtype(DType::F32).expect("f32") * weights).and_then(|y| y.sum_all()).expect("a loss")
}

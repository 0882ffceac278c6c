//! Every kernel, instruction set and rival once at the shapes that are timed, against one oracle.
#![allow(clippy::print_stdout, reason = "the run says which instruction sets it covered")]

#[path = "../benches/common/rival.rs"]
mod rival;

use std::collections::BTreeSet;

use candle_core::DType;
use rival::Rival;
use trike_benches::{Expected, Kernel, SHAPES, Weights, as_quantized};
use trike_cpu::{Cpu, Isa};
use trike_testkit::Rng;

/// Bound of `max|got - want| / max|want|` for everything that sums in f32.
const BOUND: f64 = 1e-5;
/// The same where activations and outputs are rounded to f16, with 11 bits of precision.
const F16_BOUND: f64 = 4e-3;

#[test]
fn every_kernel_answers_every_problem_of_the_catalogue() {
    let mut ran = BTreeSet::new();
    let mut rng = Rng::new(1);
    for shape in SHAPES {
        let weights = Weights::new(shape.rows, shape.cols, rng.trits(shape.rows * shape.cols, 0.6));
        let most = shape.tokens.iter().copied().max().unwrap_or(0);
        let x = rng.normals(most * shape.cols);
        for kernel in Kernel::ALL {
            let matrix = weights.matrix(kernel).expect("a shape of the catalogue");
            let integers = weights.integers(kernel);
            for problem in shape.problems() {
                let x = &x[..problem.tokens * shape.cols];
                let expected =
                    Expected::new(&integers, shape.cols, &as_quantized(x, shape.cols, kernel.precision()));
                for isa in Isa::available().into_iter().filter(|&isa| problem.is_for(isa)) {
                    let cpu = Cpu::with_isa(isa, 2).expect("two threads");
                    let mut out = vec![f32::NAN; problem.tokens * shape.rows];
                    cpu.linear(x, &matrix, kernel.precision(), &mut out).expect("valid shapes");
                    expected.assert_answer(&out, BOUND, &format!("{problem}, {}, {isa}", kernel.name()));
                    ran.insert(isa.name());
                }
            }
        }
    }
    println!("instruction sets at benchmark shapes: {ran:?}");
    assert_eq!(ran, Isa::available().iter().map(|isa| isa.name()).collect());
}

#[test]
fn the_rival_answers_the_same_problems() -> candle_core::Result<()> {
    let mut rng = Rng::new(2);
    for shape in SHAPES {
        let weights = Weights::new(shape.rows, shape.cols, rng.trits(shape.rows * shape.cols, 0.6));
        let integers = weights.integers(Kernel::F32);
        for (dtype, name) in Rival::DTYPES {
            let rival = Rival::new(&integers, shape.rows, shape.cols, dtype)?;
            for problem in shape.problems() {
                let x = rng.normals(problem.tokens * shape.cols);
                let y = rival
                    .linear(&rival.activations(&x)?)?
                    .flatten_all()?
                    .to_dtype(DType::F32)?
                    .to_vec1::<f32>()?;
                let bound = if dtype == DType::F16 { F16_BOUND } else { BOUND };
                let expected = Expected::new(&integers, shape.cols, &x);
                expected.assert_answer(&y, bound, &format!("{problem}, {name}"));
            }
            let copy = rival.duplicate()?;
            assert_eq!(copy.bytes(), shape.rows * shape.cols * dtype.size_in_bytes());
        }
    }
    Ok(())
}

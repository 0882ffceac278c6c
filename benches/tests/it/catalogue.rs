//! Every kernel, instruction set and rival once at the shapes that are timed, against one oracle.
#![allow(clippy::print_stdout, reason = "the run says which instruction sets it covered")]

use std::collections::BTreeSet;

use trike_benches::{
    BOUND, CASES, DENSE, Expected, OPERATIONS, Operands, Plan, Rival, RivalKind, Weights, as_quantized,
};
use trike_cpu::{Cpu, CpuOps, Isa};
use trike_testkit::Rng;

#[test]
fn every_kernel_answers_every_problem_of_the_catalogue() {
    let mut ran = BTreeSet::new();
    let mut rng = Rng::new(1);
    for case in CASES {
        let weights = Weights::random(&case, &mut rng);
        let most = case.tokens.iter().copied().max().unwrap_or(0);
        let x = rng.normals(most * case.shape.cols);
        for kernel in case.kernels {
            let matrix = weights.matrix(kernel).expect("a case of the catalogue");
            let integers = weights.integers(kernel);
            for problem in case.problems() {
                let x = &x[..problem.tokens * case.shape.cols];
                let expected = Expected::new(
                    &integers,
                    case.shape.cols,
                    &as_quantized(x, case.shape.cols, kernel.activations),
                );
                for isa in Isa::available().into_iter().filter(|&isa| problem.is_for(isa)) {
                    let cpu = Cpu::with_isa(isa, 2).expect("two threads");
                    let mut out = vec![f32::NAN; problem.tokens * case.shape.rows];
                    cpu.linear(x, &matrix, kernel.activations, &mut out).expect("valid shapes");
                    expected.assert_answer(&out, BOUND, &format!("{problem}, {}, {isa}", kernel.name));
                    ran.insert(isa.name());
                }
            }
        }
    }
    println!("instruction sets at benchmark shapes: {ran:?}");
    assert_eq!(ran, Isa::available().iter().map(|isa| isa.name()).collect());
}

#[test]
fn every_operation_answers_on_every_instruction_set() {
    let mut rng = Rng::new(3);
    for operation in OPERATIONS {
        let operands = Operands::new(operation, 1, &mut rng).expect("an operation of the catalogue");
        for isa in Isa::available().into_iter().filter(|&isa| operation.is_for(isa)) {
            for threads in [1, 2] {
                let cpu = Cpu::with_isa(isa, threads).expect("a few threads");
                let checked = operands.check(&cpu);
                assert!(checked.is_ok(), "{}, {isa}, {threads} threads: {checked:?}", operation.problem());
            }
        }
    }
}

#[test]
fn the_rivals_answer_the_same_problems() -> candle_core::Result<()> {
    let mut rng = Rng::new(2);
    for case in CASES {
        let weights = Weights::random(&case, &mut rng);
        let integers = weights.integers(&DENSE);
        for problem in case.problems() {
            let x = rng.normals(problem.tokens * case.shape.cols);
            let expected = Expected::new(&integers, case.shape.cols, &x);
            for &kind in Plan::rivals(&problem) {
                let rival = Rival::new(kind, &integers, case.shape.rows, case.shape.cols)?;
                for threads in [1, 2] {
                    let y = rival.linear(&rival.activations(&x)?, threads)?.into_floats()?;
                    expected.assert_answer(&y, kind.bound(), &format!("{problem}, {}", kind.name()));
                }
                let size = if kind == RivalKind::CandleF16 { 2 } else { 4 };
                assert_eq!(rival.duplicate()?.bytes(), case.shape.rows * case.shape.cols * size);
            }
        }
    }
    Ok(())
}

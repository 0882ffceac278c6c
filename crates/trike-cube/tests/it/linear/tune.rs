//! Measured choices of kernels.

use trike_cube::internals::linear::{MAGIC, VERSION};
use trike_cube::linear::{
    ActivationPrecision, ActivationShape, Activations, CubeTernaryMatrix, TernaryProblem, Tuned,
};
use trike_cube::{CubeDevice, CubeError, Strategy};
use trike_testkit::Rng;
use trike_trit::{Encoding, Granularity, Scales, TritTensor};

use crate::testing::devices;

fn tensor(rng: &mut Rng, rows: usize, cols: usize) -> TritTensor {
    let trits = rng.trits(rows * cols, 0.5);
    let scales = Scales::new(Granularity::Row, vec![0.5; rows], None);
    TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, scales).expect("a tensor")
}

#[test]
fn the_fastest_is_used_and_a_table_brings_it_back() {
    for device in devices() {
        let mut rng = Rng::new(5);
        let [first, second] = [(), ()].map(|()| tensor(&mut rng, 48, 300));
        let [a, b] = [&first, &second].map(|t| CubeTernaryMatrix::pack(&device, &[t]).expect("a matrix"));
        let precision = ActivationPrecision::Int8PerToken;
        let shape = ActivationShape { tokens: 3, cols: 300, precision };
        let x = Activations::upload(&device, shape, &rng.normals(900)).expect("activations");
        let out = device.upload(&vec![f32::NAN; 3 * 48]).expect("an output");
        let product = |device: &CubeDevice| {
            device.linear(&x, &a, &[&out], &Strategy::Inferred).expect("a product");
            device.read(&out).expect("an output")
        };
        // Row scales: one integer sum, the same in every kernel.
        let before = product(&device);
        let tried = device.tune(&[&a, &b], 3, precision, false).expect("times");
        assert!(tried.len() > 2 && tried.iter().any(|tried| tried.inferred), "{tried:?}");
        assert!(tried[0].nanoseconds.is_some_and(|ns| ns > 0.0), "{tried:?}");
        let problem = TernaryProblem { x: shape, w: a.form().clone(), add: false };
        let choice = |device: &CubeDevice| problem.tuned(device);
        assert_eq!(choice(&device).expect("a choice").name(), tried[0].name);
        assert_eq!(product(&device), before);

        let text = device.tuned().to_text();
        let again = CubeDevice::open(device.spec()).expect("a device");
        assert_eq!(choice(&again), None);
        again.use_tuned(&Tuned::parse(&text).expect("a table")).expect("its own");
        assert_eq!(choice(&again), choice(&device));
        // Four tokens share the choice of three, five do not.
        for (tokens, known) in [(4, true), (5, false)] {
            let problem = TernaryProblem { x: ActivationShape { tokens, ..shape }, ..problem.clone() };
            let found = problem.tuned(&again);
            assert_eq!(found.is_some(), known, "{tokens}");
        }
        // A choice that names no kernel has no effect.
        let nonsense = Tuned::parse(&text.replace(&tried[0].name, "nonsense")).expect("a table");
        again.use_tuned(&nonsense).expect("its own");
        assert_eq!(choice(&again), None);
        assert_eq!(product(&again), before);
    }
}

#[test]
fn what_cannot_be_used_is_refused() {
    let header = format!("{MAGIC} {VERSION}\n");
    for (text, line, named) in [
        (String::new(), 1, MAGIC),
        (format!("{MAGIC} 0-0.0.0\ngpu\n"), 1, "0-0.0.0"),
        (header.clone(), 2, "device"),
        (format!("{header}gpu\nno tab\n"), 3, "no tab"),
    ] {
        let error = Tuned::parse(&text).expect_err(named);
        assert!(matches!(error, CubeError::Tuned { line: at, .. } if at == line), "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
    for device in devices() {
        let other = Tuned::parse(&format!("{header}another GPU\na\tb\n")).expect("a table");
        let error = device.use_tuned(&other).expect_err("another device").to_string();
        assert!(error.contains("another GPU") && error.contains(device.name()), "{error}");
        let error = device.tune(&[], 1, ActivationPrecision::Int8PerToken, false);
        assert!(matches!(error, Err(CubeError::Length { .. })));
    }
}

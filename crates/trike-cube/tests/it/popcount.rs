//! Dot products of trits with trits.

use trike_cube::{CubeError, Planes, Strategy, TritDotBlueprint, TritTable};
use trike_testkit::Rng;
use trike_trit::{Encoding, Scales, TritTensor};

use crate::testing;

#[test]
fn counts_are_exact() {
    let mut rng = Rng::new(21);
    for device in testing::devices() {
        for (queries, rows, cols) in [(1, 1, 1), (3, 9, 200), (9, 6, 128 * 64 + 5)] {
            let make = |rng: &mut Rng, rows: usize, all: bool| {
                let trits = if all { vec![-1; rows * cols] } else { rng.trits(rows * cols, 0.7) };
                let tensor = TritTensor::from_trits(rows, cols, &trits, Encoding::Base3, Scales::tensor(1.0))
                    .expect("a tensor");
                (trits, TritTable::upload(&device, &tensor).expect("uploaded"))
            };
            let (q, query) = make(&mut rng, queries, rows == 6);
            let (t, table) = make(&mut rng, rows, rows == 6);
            let out = device.upload(&vec![i32::MIN; queries * rows]).expect("room");
            device.trit_dot(&query, &table, &out, &Strategy::Inferred).expect("a launch");
            let want: Vec<i32> = q
                .chunks(cols)
                .flat_map(|q| t.chunks(cols).map(|t| q.iter().zip(t).map(|(a, b)| i32::from(a * b)).sum()))
                .collect();
            assert_eq!(device.read(&out).expect("a device"), want);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(device) = testing::device(Planes::Off) else { return };
    let tensor = |cols: usize| {
        TritTensor::from_trits(2, cols, &vec![1; 2 * cols], Encoding::Planes, Scales::tensor(1.0))
            .expect("a tensor")
    };
    let (a, b) = (
        TritTable::upload(&device, &tensor(5)).expect("room"),
        TritTable::upload(&device, &tensor(6)).expect("room"),
    );
    let out = device.upload(&[0i32; 4]).expect("room");
    let short = device.upload(&[0i32; 3]).expect("room");
    assert!(matches!(
        device.trit_dot(&a, &b, &out, &Strategy::Inferred),
        Err(CubeError::Length { expected: 6, got: 5, .. })
    ));
    assert!(matches!(
        device.trit_dot(&a, &a, &short, &Strategy::Inferred),
        Err(CubeError::Length { expected: 4, got: 3, .. })
    ));
    let forced = Strategy::Forced(TritDotBlueprint { queries: 3 });
    assert!(matches!(device.trit_dot(&a, &a, &out, &forced), Err(CubeError::NotMultiple { .. })));
}

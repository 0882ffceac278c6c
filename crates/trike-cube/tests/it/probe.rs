//! Measured ceilings of a device.

use trike_cube::internals::MAX_ROUNDS;
use trike_cube::{CubeError, Products};

use crate::testing::devices;

#[test]
fn results_stay_in_their_types() {
    for products in Products::ALL {
        let one = i64::from(products.result(1));
        assert_ne!(one, 0, "{products:?}");
        let most = one * MAX_ROUNDS as i64;
        assert_eq!(i64::from(products.result(MAX_ROUNDS)), most, "{products:?}");
    }
    // Sums in f32 stay exact: multiples of 1/8 below 2^21.
    assert!(Products::F16Mma.result(MAX_ROUNDS).unsigned_abs() < 1 << 21);
}

#[test]
fn a_copy_is_a_copy_and_products_are_what_they_should_be() {
    for device in devices() {
        let words: Vec<u32> = (0..5000).collect();
        let (from, to) = (device.upload(&words).unwrap(), device.upload(&vec![7u32; 5000]).unwrap());
        assert_eq!(device.probe_copy(&from, &to).unwrap().bytes, 40_000);
        assert_eq!(device.read(&to).unwrap(), words);
        let three = device.upload(&[0u32; 3]).unwrap();
        assert!(matches!(
            device.probe_copy(&three, &device.upload(&[1u32; 3]).unwrap()),
            Err(CubeError::NotMultiple { got: 3, .. })
        ));
        assert!(matches!(device.probe_copy(&from, &from), Err(CubeError::Overlap { .. })));
        assert!(matches!(device.probe_copy(&from, &three), Err(CubeError::Length { .. })));

        let out = device.upload(&vec![-1i32; 512]).unwrap();
        let cost = device.probe_products(Products::Dp4a, 3, &out).unwrap();
        assert_eq!(cost.macs, 512 * 3 * 8 * 4);
        assert_eq!(device.read(&out).unwrap(), vec![Products::Dp4a.result(3); 512]);
        for rounds in [0, MAX_ROUNDS + 1] {
            assert!(matches!(
                device.probe_products(Products::Dp4a, rounds, &out),
                Err(CubeError::Range { .. })
            ));
        }
        let odd = device.upload(&[0i32; 100]).unwrap();
        assert!(matches!(
            device.probe_products(Products::Dp4a, 1, &odd),
            Err(CubeError::NotMultiple { unit: 256, .. })
        ));
        if !Products::Int8Mma.is_supported(device.capabilities()) {
            assert!(matches!(
                device.probe_products(Products::Int8Mma, 1, &out),
                Err(CubeError::Feature { feature: "int8 mma", .. })
            ));
        }
    }
}

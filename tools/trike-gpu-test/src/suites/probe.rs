//! The kernels that measure the peak rates of a device: a wrong peak would invalidate all fractions of it.

use trike_cube::{CubeError, Products};
use trike_testkit::Rng;

use crate::session::{Session, poisoned_words};

/// Copies, and products in registers.
pub fn probe(session: &mut Session) {
    let device = session.device();
    for words in [4, 1020, 4096, 10_000] {
        session.case(format_args!("probe/copy {words} words"), |oracle| {
            let mut rng = Rng::new(words as u64);
            let from: Vec<u32> = (0..words).map(|_| rng.below(1 << 30) as u32).collect();
            let to = poisoned_words::<u32>(device, words)?;
            device.probe_copy(&device.upload(&from)?, &to)?;
            oracle.exact("copy", &device.read(&to)?, &from)
        });
    }
    for products in Products::ALL {
        for (units, rounds) in [(256, 1), (768, 37)] {
            let name = products.name();
            session.case(format_args!("probe/products {name}, {units} units, {rounds} rounds"), |oracle| {
                let out = poisoned_words::<i32>(device, units)?;
                device.probe_products(products, rounds, &out)?;
                oracle.exact("sums", &device.read(&out)?, &vec![products.result(rounds); units])
            });
        }
    }
    session.case("probe/products refuses units that fill no cube", |oracle| {
        let out = poisoned_words::<i32>(device, 300)?;
        let refused = device.probe_products(Products::Dp4a, 1, &out);
        oracle
            .refused("products", refused, |e| matches!(e, CubeError::NotMultiple { unit: 256, got: 300, .. }))
    });
}

//! Layout selection for a tensor.

use trike_core::Layout;
use trike_cube::Planes;
use trike_cube::linear::{ActivationPrecision, choose_layout, has_kernel};
use trike_testkit::Rng;
use trike_trit::{Encoding, Granularity, GroupSize, Scales, TritTensor};

use crate::testing;

#[test]
fn the_table_follows_zeros_and_their_structure() {
    let Some(device) = testing::device(Planes::Off) else { return };
    let mut rng = Rng::new(41);
    let (rows, cols) = (256, 1024);
    let tensor = |trits: &[i8], granularity| {
        let scales = match granularity {
            Granularity::Group(size) => rows * cols / size.get(),
            Granularity::Row => rows,
            Granularity::Tensor => 1,
        };
        let scales = Scales::new(granularity, vec![1.0; scales], None);
        TritTensor::from_trits(rows, cols, trits, Encoding::TwoBit, scales).expect("a tensor")
    };
    let int8 = ActivationPrecision::Int8PerToken;
    let grouped = ActivationPrecision::Int8PerGroup(GroupSize::G64);
    let few = rng.trits(rows * cols, 0.05);
    let many = rng.trits(rows * cols, 0.6);
    let mut blocks = many.clone();
    for (row, trits) in blocks.chunks_mut(cols).enumerate() {
        for (block, trits) in trits.chunks_mut(128).enumerate() {
            if (row / 16 + block) % 4 != 0 {
                trits.fill(0);
            }
        }
    }
    let g64 = Granularity::Group(GroupSize::G64);
    for (trits, granularity, activations, want) in [
        (&few, Granularity::Row, int8, Layout::Sparse),
        // Neither group scales nor group factors have a sparse kernel.
        (&few, g64, int8, Layout::TwoBit),
        (&few, Granularity::Row, grouped, Layout::TwoBit),
        (&many, Granularity::Row, int8, Layout::TwoBit),
        (&blocks, Granularity::Row, int8, Layout::Blocks),
        (&blocks, g64, grouped, Layout::Blocks),
    ] {
        let tensor = tensor(trits, granularity);
        assert_eq!(choose_layout(&device, &tensor, activations), want, "{granularity:?} {activations:?}");
        assert!(has_kernel(&device, &tensor, want, activations));
    }
}

//! Batches on a device against the same functions on the host: bit-identical.
#![cfg(feature = "gpu")]

use trike_testkit::{Rng, skip};
use trike_vsa::cube::{CubeDevice, CubeError, DeviceOptions, DeviceSpec, Planes, Runtime};
use trike_vsa::{
    Algebra, Bipolar, Bundle, DeviceMemory, DeviceVectors, ItemMemory, PackedTritVec, SearchDevice, Ternary,
    VsaError, Z3, bind, bundle_many, bundle_weighted, permute, unbind,
};

/// The software Vulkan driver; `None` after a line that the test runner counts.
fn software() -> Option<CubeDevice> {
    let open = |index| {
        let spec = DeviceSpec::Numbered(Runtime::Wgpu, index);
        CubeDevice::open_with(spec, DeviceOptions::default().with_planes(Planes::Off)).ok()
    };
    let found = (0..).map_while(open).find(|device| device.is_software() && device.capabilities().f16);
    if found.is_none() {
        skip("no Vulkan driver");
    }
    found
}

/// Below, at and above a word of 32 bits, a word of 64 and a step of 128; several steps.
const DIMS: [usize; 11] = [1, 2, 31, 32, 33, 64, 127, 128, 129, 1000, 4099];

fn set<A: Algebra>(dim: usize, count: usize, seed: u64) -> Vec<PackedTritVec<A>> {
    PackedTritVec::random_set(dim, count, seed).expect("vectors")
}

fn batch<A: Algebra>(device: &CubeDevice, vectors: &[PackedTritVec<A>]) -> DeviceVectors<A> {
    DeviceVectors::upload(device, vectors).expect("room")
}

fn agrees<A: Algebra>(device: &CubeDevice) {
    for dim in DIMS {
        let (a, b) = (set::<A>(dim, 6, 1), set::<A>(dim, 6, 2));
        let (on_a, on_b) = (batch(device, &a), batch(device, &b));
        let what = format!("{} {dim}", A::KIND);
        assert_eq!((on_a.len(), on_a.dim()), (6, dim));
        assert_eq!(on_a.read().expect("back"), a, "{what}");

        // Pairwise, and all with the same vector.
        let bound = on_a.bind(&on_b).expect("bound");
        let want: Vec<_> = a.iter().zip(&b).map(|(a, b)| bind(a, b).expect("bound")).collect();
        assert_eq!(bound.read().expect("back"), want, "bind {what}");
        let want: Vec<_> = want.iter().zip(&b).map(|(a, b)| unbind(a, b).expect("unbound")).collect();
        assert_eq!(bound.unbind(&on_b).expect("unbound").read().expect("back"), want, "unbind {what}");
        let one = batch(device, &b[2..3]);
        let want: Vec<_> = a.iter().map(|a| unbind(a, &b[2]).expect("unbound")).collect();
        assert_eq!(on_a.unbind(&one).expect("unbound").read().expect("back"), want, "unbind one {what}");

        let n = dim as isize;
        for by in [0, 1, -1, 31, 32, 64, 77, n - 1, n, -3 * n - 5, 1_000_003] {
            let want: Vec<_> = a.iter().map(|a| permute(a, by).expect("permuted")).collect();
            assert_eq!(on_a.permute(by).expect("permuted").read().expect("back"), want, "{what} by {by}");
        }

        for each in [1, 2, 3, 6] {
            let want: Vec<_> = a.chunks(each).map(|run| bundle_many(run).expect("a bundle")).collect();
            assert_eq!(on_a.bundle(each).expect("bundles").read().expect("back"), want, "{what} {each}");
            let counts = on_a.bundle_counts(each).expect("counts");
            for (got, run) in counts.iter().zip(a.chunks(each)) {
                let want = Bundle::of(run).expect("a bundle");
                assert_eq!((got.total(), got.squared_weights()), (want.total(), want.squared_weights()));
                assert_eq!(got.sums().expect("sums"), want.sums().expect("sums"), "{what} {each}");
                assert_eq!(got.to_vector().expect("trits"), want.to_vector().expect("trits"));
            }
        }
        let weights = [3, 1, 2, 0, 7, 1];
        let want: Vec<_> = (0..2)
            .map(|run| bundle_weighted(a[3 * run..].iter().zip(weights[3 * run..].iter().copied()).take(3)))
            .collect::<Result<_, _>>()
            .expect("bundles");
        let got = on_a.bundle_weighted(3, &weights).expect("bundles").read().expect("back");
        assert_eq!(got, want, "weights {what}");

        let scores = on_a.scores(&on_b).expect("scores");
        for (i, a) in a.iter().enumerate() {
            let memory = ItemMemory::of(&b).expect("a memory");
            let mut want = vec![0; 6];
            for hit in memory.top_k(a, 6).expect("hits") {
                want[hit.index] = i32::try_from(hit.score).expect("a score");
            }
            assert_eq!(scores[6 * i..][..6], want, "{what}");
        }
    }
}

#[test]
fn every_algebra_agrees_with_the_host_to_the_bit() {
    let Some(device) = software() else { return };
    agrees::<Z3>(&device);
    agrees::<Bipolar>(&device);
    agrees::<Ternary>(&device);
}

/// Vectors of few distinct values tie often; ties are ordered by index.
fn searches<A: Algebra>(device: &CubeDevice) {
    let mut rng = Rng::new(5);
    for (dim, count, k) in [(3, 300, 40), (257, 1100, 1), (200, 90, 256)] {
        let vectors = set::<A>(dim, count, 3);
        let mut queries = set::<A>(dim, 9, 4);
        queries.push(vectors[rng.below(count)].clone());
        let memory = DeviceMemory::new(ItemMemory::of(&vectors).expect("a memory"), device).expect("room");
        let want = memory.host().top_k_batch(&queries, k).expect("hits");
        assert!(!memory.is_on_device(queries.len(), k), "small, and a software driver");
        assert_eq!(memory.top_k_batch(&queries, k).expect("hits"), want);
        let memory = memory.at(SearchDevice::Device);
        assert!(memory.is_on_device(1, 1));
        assert_eq!(memory.top_k_batch(&queries, k).expect("hits"), want, "{} {dim} {count}", A::KIND);
    }
}

#[test]
fn searches_find_what_the_host_finds() {
    let Some(device) = software() else { return };
    searches::<Z3>(&device);
    searches::<Bipolar>(&device);
    searches::<Ternary>(&device);
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(device) = software() else { return };
    let (a, b) = (set::<Z3>(100, 6, 1), set::<Z3>(99, 6, 2));
    let (on_a, on_b) = (batch(&device, &a), batch(&device, &b));
    assert!(matches!(DeviceVectors::<Z3>::upload(&device, &[]), Err(VsaError::Empty { .. })));
    let mixed = [a[0].clone(), b[0].clone()];
    assert!(matches!(
        DeviceVectors::upload(&device, &mixed),
        Err(VsaError::Dimension { expected: 100, got: 99, .. })
    ));
    assert!(matches!(on_a.bind(&on_b), Err(VsaError::Dimension { expected: 100, got: 99, .. })));
    assert!(matches!(on_a.scores(&on_b), Err(VsaError::Dimension { .. })));
    let two = batch(&device, &a[..2]);
    let refused = on_a.unbind(&two);
    assert!(matches!(refused, Err(VsaError::Cube(CubeError::Length { expected: 6, got: 2, .. }))));
    for each in [0, 4, 7] {
        assert!(matches!(on_a.bundle(each), Err(VsaError::Cube(CubeError::NotMultiple { .. }))), "{each}");
    }
    assert!(matches!(on_a.bundle_weighted(3, &[1; 5]), Err(VsaError::Cube(CubeError::Length { .. }))));
    let heavy = on_a.bundle_weighted(2, &[1 << 30, 1 << 30, 1, 1, 1, 1]);
    assert!(matches!(heavy, Err(VsaError::Cube(CubeError::Range { .. }))));
    let memory = DeviceMemory::new(ItemMemory::of(&a).expect("a memory"), &device).expect("room");
    assert!(matches!(memory.top_k_batch(&b, 1), Err(VsaError::Dimension { .. })));
    assert!(matches!(memory.top_k_batch(&a, 0), Err(VsaError::Range { .. })));
    assert_eq!(memory.top_k_batch(&[], 1).expect("none"), Vec::<Vec<_>>::new());
    assert!(DeviceMemory::new(ItemMemory::<Z3>::new(5).expect("a memory"), &device).is_err());
}

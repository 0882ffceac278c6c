//! Each operation of the host backend compared with the reference backend, and the errors of both.

use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_cpu::Cpu;
use trike_nn::{
    ActivationPrecision, AttentionSpec, Backend, BackendCaches, CacheSpec, CpuBackend, Eviction,
    GatedActivation, KeySelector, KvPrecision, NnError, PromptKeys, RopePairing, RopeSpec, StepInputs,
    Tensor,
};
use trike_reference::CandleBackend;
use trike_testkit::{Rng, assert_close};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Hadamard, ScaleValues, Scales, TritTensor};

fn cpu() -> CpuBackend {
    CpuBackend::new(Cpu::new(2).expect("two threads"), ActivationPrecision::F32)
}

fn candle() -> CandleBackend {
    CandleBackend::new(ActivationPrecision::F32)
}

fn tensor<B: Backend>(backend: &B, rows: usize, values: &[f32]) -> B::Tensor {
    backend.upload(values, values.len() / rows).expect("rows")
}

/// The inputs of one sequence that reads `ids` from the start.
fn inputs<B: Backend>(backend: &B, ids: &[u32]) -> B::Inputs {
    let mut inputs = StepInputs::default();
    inputs.push(ids, 0, None).expect("ids");
    backend.inputs(inputs).expect("inputs")
}

fn weights(rng: &mut Rng) -> Vec<Tensor> {
    let (rows, cols) = (10, 70);
    let planes = [rng.trits(rows * cols, 0.6), rng.trits(rows * cols, 0.3)];
    let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
    let granularity = Granularity::Group(GroupSize::G32);
    let scales = Scales::new(granularity, rng.normals(rows * 3), Some(rng.normals(rows * 3).into()));
    let tied = TritTensor::from_planes(rows, cols, &planes, Encoding::Planes, Coupling::Tied, scales);
    let codes = rng.normals(rows * cols).iter().map(|v| (v * 40.0) as i8).collect();
    let halves = rng.normals(rows * cols).iter().map(|&v| half::f16::from_f32(v)).collect();
    let brains = rng.normals(rows * cols).iter().map(|&v| half::bf16::from_f32(v)).collect();
    let tied = tied.expect("a tensor");
    let rotated = tied.clone().with_rotation(Hadamard::largest(cols, 8)).expect("pairs");
    vec![
        Tensor::Ternary(tied),
        Tensor::Ternary(rotated),
        Tensor::Int8(
            Int8Tensor::new(rows, cols, 32, codes, ScaleValues::F32(rng.normals(rows * 3)))
                .expect("a matrix"),
        ),
        Tensor::Dense(
            DenseTensor::new(vec![rows, cols], DenseData::F32(rng.normals(rows * cols))).expect("one"),
        ),
        Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F16(halves)).expect("one")),
        Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::Bf16(brains)).expect("one")),
    ]
}

fn linear<B: Backend>(backend: &B, weights: &[Tensor], x: &[f32]) -> Vec<Vec<f32>> {
    let loaded: Vec<_> = weights.iter().map(|w| backend.load_matrix(w.clone()).expect("it loads")).collect();
    let x = tensor(backend, x.len() / 70, x);
    let outs = backend.linear(&x, &loaded.iter().collect::<Vec<_>>()).expect("products");
    outs.into_iter().map(|out| backend.move_to_host(out).expect("values")).collect()
}

#[test]
fn linear_layers_of_every_kind_share_an_input() {
    let mut rng = Rng::new(1);
    let weights = weights(&mut rng);
    let x = rng.normals(3 * 70);
    for (got, want) in linear(&cpu(), &weights, &x).iter().zip(linear(&candle(), &weights, &x)) {
        assert_close(got, &want, 1e-5);
    }
}

#[test]
fn rows_are_looked_up_in_every_kind_of_table() {
    fn rows<B: Backend>(backend: &B, weight: &Tensor) -> Vec<f32> {
        let table = backend.load_table(weight.clone()).expect("it loads");
        assert!(matches!(
            backend.embed(&table, &inputs(backend, &[10]), 1.0),
            Err(NnError::Token { id: 10, vocab: 10 })
        ));
        assert!(backend.matrix_bytes(&table) > 0);
        backend
            .to_host(&backend.embed(&table, &inputs(backend, &[9, 0, 9]), 1.0).expect("rows"))
            .expect("values")
    }
    for weight in weights(&mut Rng::new(2)) {
        let want: Vec<f32> = weight.to_f32();
        let want = [&want[9 * 70..], &want[..70], &want[9 * 70..]].concat();
        assert_close(&rows(&cpu(), &weight), &want, 1e-6);
        assert_close(&rows(&candle(), &weight), &want, 1e-6);
    }
}

#[test]
fn norms_gates_and_sums() {
    fn run<B: Backend>(backend: &B) -> Vec<Vec<f32>> {
        let mut rng = Rng::new(3);
        let (a, b) = (rng.normals(4 * 33), rng.normals(4 * 33));
        let norm = backend.load_vector(rng.normals(33)).expect("a vector");
        let (mut x, y) = (tensor(backend, 4, &a), tensor(backend, 4, &b));
        let outs = [
            backend.rms_norm(&x, &norm, 1e-5).expect("a norm"),
            backend.gated(&x, &y, GatedActivation::SiLu).expect("a gate"),
            backend.gated(&x, &y, GatedActivation::SquaredReLu).expect("a gate"),
            backend.select_rows(&x, &[3, 1]).expect("rows"),
        ];
        backend.add(&mut x, &y).expect("a sum");
        assert!(backend.select_rows(&x, &[4]).is_err());
        let narrow = tensor(backend, 4, &[1.0; 8]);
        assert!(backend.add(&mut x, &narrow).is_err());
        assert!(backend.gated(&x, &narrow, GatedActivation::SiLu).is_err());
        assert!(backend.rms_norm(&narrow, &norm, 1e-5).is_err());
        outs.into_iter().chain([x]).map(|out| backend.move_to_host(out).expect("values")).collect()
    }
    for (got, want) in run(&cpu()).iter().zip(run(&candle())) {
        assert_close(got, &want, 1e-5);
    }
}

#[test]
fn rotations_in_both_pairings() {
    fn run<B: Backend>(backend: &B, pairing: RopePairing) -> Vec<f32> {
        let spec = RopeSpec::new(10_000.0, pairing);
        let rope = backend.load_rope(&spec, 8, 16).expect("frequencies");
        let mut x = tensor(backend, 3, &Rng::new(4).normals(3 * 2 * 8));
        let mut inputs = StepInputs::default();
        for position in [0, 7, 300] {
            inputs.push_rows(1, position, None).expect("a row");
        }
        let inputs = backend.inputs(inputs).expect("inputs");
        backend.rope(&mut x, &rope, &inputs).expect("a rotation");
        let mut odd = tensor(backend, 3, &[1.0; 3 * 12]);
        assert!(backend.rope(&mut odd, &rope, &inputs).is_err());
        backend.move_to_host(x).expect("values")
    }
    let mut seen = Vec::new();
    for pairing in [RopePairing::Adjacent, RopePairing::Halves] {
        let got = run(&cpu(), pairing);
        assert_close(&got, &run(&candle(), pairing), 1e-4);
        // Position 0 has rotation angle 0.
        assert_close(&got[..16], &Rng::new(4).normals(3 * 2 * 8)[..16], 1e-6);
        seen.push(got);
    }
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn attention_of_two_sequences_at_once() {
    fn run<B: Backend>(backend: &B, precision: KvPrecision, window: Option<usize>) -> Vec<f32> {
        let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 6, scale: 0.4, window: None };
        let keys = KeySelector::All;
        let cache = CacheSpec {
            kv_heads: 2,
            head_dim: 6,
            capacity: 12,
            precision,
            keys,
            prompt_keys: PromptKeys::All,
            eviction: Eviction::Never,
        };
        let mut caches = [backend.new_cache(&cache).expect("one"), backend.new_cache(&cache).expect("one")];
        let mut rng = Rng::new(5);
        let mut outs = Vec::new();
        for (first, lens) in [(0, [5, 2]), (5, [1, 1])] {
            let tokens: usize = lens.iter().sum();
            let mut random = |width: usize| tensor(backend, tokens, &rng.normals(tokens * width));
            let (q, k, v) = (random(24), random(12), random(12));
            let mut inputs = StepInputs::default();
            inputs.push_rows(lens[0], first, window).expect("rows");
            inputs.push_rows(lens[1], first.min(2), window).expect("rows");
            let inputs = backend.inputs(inputs).expect("inputs");
            let mut caches: Vec<_> = caches.iter_mut().collect();
            let out = backend.attention(&spec, &q, &k, &v, &inputs, &mut caches).expect("an attention");
            outs.extend(backend.move_to_host(out).expect("values"));
            assert!(
                backend.attention(&spec, &k, &k, &v, &inputs, &mut caches).is_err(),
                "queries of the wrong width"
            );
        }
        outs
    }
    let mut seen = Vec::new();
    for window in [None, Some(3)] {
        for precision in [KvPrecision::F32, KvPrecision::F16] {
            let got = run(&cpu(), precision, window);
            assert_close(&got, &run(&candle(), precision, window), 1e-4);
            seen.push(got);
        }
    }
    assert!(seen[0] != seen[1] && seen[0] != seen[2], "precision and window both matter");
}

#[test]
fn the_reference_refuses_an_int8_cache() {
    let keys = KeySelector::All;
    let cache = |precision| CacheSpec {
        kv_heads: 2,
        head_dim: 6,
        capacity: 12,
        precision,
        keys,
        prompt_keys: PromptKeys::All,
        eviction: Eviction::Never,
    };
    let refused = candle().new_cache(&cache(KvPrecision::Int8)).expect_err("no int8");
    assert_eq!(refused.to_string(), "precision of a KV cache must be f32 or f16 with Candle, got int8");
    for precision in KvPrecision::ALL {
        assert_eq!(
            candle().capabilities().can_cache(precision),
            candle().new_cache(&cache(precision)).is_ok()
        );
        assert!(cpu().capabilities().can_cache(precision) && cpu().new_cache(&cache(precision)).is_ok());
    }
}

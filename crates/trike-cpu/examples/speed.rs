#![allow(missing_docs, clippy::all, clippy::print_stdout)]
use std::time::Instant;
use trike_cpu::*;
use trike_trit::*;
fn bench(name: &str, macs: f64, bytes: f64, mut f: impl FnMut()) {
    f();
    let mut best = f64::INFINITY;
    let t0 = Instant::now();
    let mut n = 0;
    while t0.elapsed().as_secs_f64() < 0.25 || n < 3 {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_secs_f64());
        n += 1;
    }
    println!(
        "{name:55} {:8.1} us {:7.1} GMAC/s {:6.1} GB/s",
        best * 1e6,
        macs / best / 1e9,
        bytes / best / 1e9
    );
}
fn main() {
    let (n, k) = (4096usize, 4096usize);
    let mut s = 1u64;
    let mut r = move || {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (s >> 40) as u32
    };
    let trits: Vec<i8> = (0..n * k).map(|_| (r() % 3) as i8 - 1).collect();
    let x: Vec<f32> = (0..128 * k).map(|_| (r() % 2001) as f32 / 1000.0 - 1.0).collect();
    for isa in Isa::available() {
        for t in [1, 2] {
            let cpu = Cpu::with_isa(isa, t).unwrap();
            println!("== {isa} {t} {:?}", probe::int8_peak(&cpu).variants);
            if isa == Isa::detect() {
                println!("{:?}", probe::memory_bandwidth(&cpu).unwrap().variants);
            }
            for gran in [
                Granularity::Tensor,
                Granularity::Group(GroupSize::G128),
                Granularity::Group(GroupSize::G64),
                Granularity::Group(GroupSize::G32),
            ] {
                let count = gran.count(n, k).unwrap();
                let scales = Scales::new(gran, vec![half::f16::from_f32(0.5); count], None);
                let w: Matrix = TernaryMatrix::pack(
                    &TritTensor::from_trits(n, k, &trits, Encoding::TwoBit, scales).unwrap(),
                )
                .unwrap()
                .into();
                for p in [ActivationPrecision::Int8PerToken, ActivationPrecision::F32] {
                    for m in [1usize, 128] {
                        if m == 128 && isa.name() == "scalar" {
                            continue;
                        }
                        let mut out = vec![0.0; m * n];
                        bench(
                            &format!("ternary {gran:?} {p:?} m={m}"),
                            (m * n * k) as f64,
                            w.bytes() as f64,
                            || cpu.linear(&x[..m * k], &w, p, &mut out).unwrap(),
                        );
                    }
                }
            }
            let wf: Vec<f32> = x.iter().cycle().take(n * k).copied().collect();
            let ms: [(&str, Matrix); 4] = [
                ("f32", DenseMatrix::new(n, k, DenseData::F32(wf.clone())).unwrap().into()),
                (
                    "f16",
                    DenseMatrix::new(
                        n,
                        k,
                        DenseData::F16(wf.iter().map(|&v| half::f16::from_f32(v)).collect()),
                    )
                    .unwrap()
                    .into(),
                ),
                ("int8 g64", Int8Matrix::new(n, k, 64, trits.clone(), vec![1.0; n * k / 64]).unwrap().into()),
                ("int8 g32", Int8Matrix::new(n, k, 32, trits.clone(), vec![1.0; n * k / 32]).unwrap().into()),
            ];
            for (name, w) in &ms {
                for m in [1usize, 128] {
                    if m == 128 && isa.name() == "scalar" {
                        continue;
                    }
                    let mut out = vec![0.0; m * n];
                    bench(&format!("{name} m={m}"), (m * n * k) as f64, w.bytes() as f64, || {
                        cpu.linear(&x[..m * k], w, ActivationPrecision::F32, &mut out).unwrap()
                    });
                }
            }
            let pr = Attention { heads: 20, kv_heads: 5, head_dim: 128, scale: 0.1, window: None };
            let kv: Vec<half::f16> =
                x.iter().cycle().take(5 * 1024 * 128).map(|&v| half::f16::from_f32(v)).collect();
            for m in [1usize, 64] {
                let q = vec![0.1; m * 2560];
                let mut out = vec![0.0; m * 2560];
                bench(
                    &format!("attention f16 m={m} at 900"),
                    (2 * m * 20 * 900 * 128) as f64,
                    (2 * 2 * 5 * 900 * 128) as f64,
                    || {
                        cpu.attention(
                            &pr,
                            &q,
                            900,
                            KvView { k: KvData::F16(&kv), v: KvData::F16(&kv), capacity: 1024 },
                            &mut out,
                        )
                        .unwrap()
                    },
                );
            }
            let mut out = vec![0.0; 6912 * 8];
            bench("silu 6912x8", 6912.0 * 8.0, 0.0, || {
                cpu.gated(&x[..6912 * 8], &x[..6912 * 8], GatedActivation::SiLu, &mut out).unwrap()
            });
            bench("rms 6912x8", 6912.0 * 8.0, 0.0, || {
                cpu.rms_norm(&x[..6912 * 8], &x[..6912], 1e-5, &mut out).unwrap()
            });
        }
    }
}

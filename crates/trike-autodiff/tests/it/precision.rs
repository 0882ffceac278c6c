//! Reduced-precision products: which operands each part of a policy rounds.

use trike_autodiff::{Buffers, MixedPrecision, ProductPrecision as P, Tape};
use trike_cpu::Cpu;
use trike_testkit::{Rng, assert_all_near, assert_near};

const TOKENS: usize = 5;
const IN: usize = 37;
const OUT: usize = 18;

/// `a b` in f64; both row-major.
fn product(a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) -> Vec<f32> {
    let product = |i: usize, p: usize, j: usize| f64::from(a[i * k + p]) * f64::from(b[p * n + j]);
    (0..m * n).map(|at| (0..k).map(|p| product(at / n, p, at % n)).sum::<f64>() as f32).collect()
}

fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|c| values.iter().skip(c).step_by(cols)).copied().collect()
}

fn rounded(values: &[f32], precision: P) -> Vec<f32> {
    values.iter().map(|v| precision.round(*v)).collect()
}

#[test]
fn each_product_rounds_its_operands() {
    let mut rng = Rng::new(7);
    let (x, w, dy) = (rng.normals(TOKENS * IN), rng.normals(OUT * IN), rng.normals(TOKENS * OUT));
    let cpu = Cpu::new(1).expect("a thread");
    let mixed = MixedPrecision { outputs: P::Bf16, input_gradients: P::F16, ..MixedPrecision::default() };
    for policy in
        [MixedPrecision::default(), MixedPrecision::all(P::Bf16), MixedPrecision::all(P::F16), mixed]
    {
        let mut tape = Tape::new(&cpu, &Buffers::default()).with_precision(policy);
        let vars = [tape.parameter(&x, IN), tape.parameter(&w, IN)].map(|var| var.expect("a parameter"));
        let y = tape.linear(vars[0], vars[1], None).expect("an output");
        let output = tape.value(y).expect("its values").to_vec();
        let mut found = tape.backward_from(y, dy.clone()).expect("gradients");
        let [dx, dw] = vars.map(|var| found.take(var).expect("a gradient"));

        let of = |precision| [&x, &w, &dy].map(|all| rounded(all, precision));
        let [x, w, _] = of(policy.outputs);
        assert_all_near!(
            &output,
            &product(&x, &transposed(&w, IN), [TOKENS, IN, OUT]),
            abs = 2e-5,
            "{policy:?}"
        );
        let [_, w, d] = of(policy.input_gradients);
        assert_all_near!(&dx, &product(&d, &w, [TOKENS, OUT, IN]), abs = 2e-5, "{policy:?}");
        let [x, _, d] = of(policy.weight_gradients);
        assert_all_near!(
            &dw,
            &product(&transposed(&d, OUT), &x, [OUT, TOKENS, IN]),
            abs = 2e-5,
            "{policy:?}"
        );
    }
}

#[test]
fn the_head_has_a_precision_of_its_own() {
    let mut rng = Rng::new(8);
    let (h, w) = (rng.normals(TOKENS * IN), rng.normals(OUT * IN));
    let targets: Vec<Option<u32>> = (0..TOKENS as u32).map(Some).collect();
    let cpu = Cpu::new(1).expect("a thread");
    let loss = |policy: MixedPrecision, h: &[f32], w: &[f32]| {
        let mut tape = Tape::new(&cpu, &Buffers::default()).with_precision(policy);
        let (h, w) = (tape.constant(h, IN).expect("values"), tape.constant(w, IN).expect("values"));
        tape.cross_entropy(h, w, &targets, 1.0).expect("a loss").sum
    };
    let exact = MixedPrecision::default();
    let blocks = MixedPrecision { head: P::F32, ..MixedPrecision::all(P::Bf16) };
    assert_eq!(loss(blocks, &h, &w).to_bits(), loss(exact, &h, &w).to_bits());
    let got = loss(MixedPrecision { head: P::Bf16, ..exact }, &h, &w);
    let want = loss(exact, &rounded(&h, P::Bf16), &rounded(&w, P::Bf16));
    assert_near!(got, want, abs = 1e-4);
    assert!((got - loss(exact, &h, &w)).abs() > 1e-4, "{got} as in f32");
}

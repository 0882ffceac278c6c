//! Simulations compared with the theory.

use trike_testkit::assert_near;
use trike_vsa::capacity::{BundleForm, efficiency, retrieval_probability};
use trike_vsa::{
    Algebra, Bipolar, Bundle, ItemMemory, PackedTritVec, Ternary, Z3, bind, bundle_balanced, unbind,
};

/// Keys and values of a record, and their bindings.
struct Pairs<A: Algebra> {
    keys: Vec<PackedTritVec<A>>,
    bound: Vec<PackedTritVec<A>>,
    memory: ItemMemory<A>,
}

fn pairs<A: Algebra>(dim: usize, k: usize, seed: u64) -> Pairs<A> {
    let keys = PackedTritVec::random_set(dim, k, 2 * seed).unwrap();
    let values = PackedTritVec::random_set(dim, k, 2 * seed + 1).unwrap();
    let bound = keys.iter().zip(&values).map(|(key, value)| bind(key, value).unwrap()).collect();
    Pairs { keys, bound, memory: ItemMemory::of(&values).unwrap() }
}

impl<A: Algebra> Pairs<A> {
    /// Number of keys whose value is retrieved from a vector.
    fn found_in(&self, vector: &PackedTritVec<A>) -> usize {
        let noisy: Vec<_> = self.keys.iter().map(|key| unbind(vector, key).unwrap()).collect();
        let hits = self.memory.top_k_batch(&noisy, 1).unwrap();
        hits.iter().enumerate().filter(|(i, hits)| hits[0].index == *i).count()
    }

    /// Number of the first `keys` keys whose value is retrieved by counts.
    fn found_by_counts(&self, keys: usize) -> usize {
        let bundle = Bundle::of(&self.bound).unwrap();
        let found = |i: &usize| {
            let mut bundle = bundle.clone();
            bundle.unbind(&self.keys[*i]).unwrap();
            self.memory.nearest_in_bundle(&bundle).unwrap().index == *i
        };
        (0..keys).filter(found).count()
    }
}

/// Queries per table cell: a standard deviation of at most 0.7 percentage points.
const QUERIES: usize = 3000;

#[expect(clippy::print_stdout, reason = "these lines form the table in the documentation")]
fn simulate<A: Algebra>(kept: BundleForm) {
    for k in [50, 100, 200, 500, 1000] {
        // Dimensions with a theoretical probability of about 80 %, where errors of the theory are visible.
        let dim = (15.5 * k as f64 / efficiency::<A>(kept) * (1.0 + 0.1 * (k as f64 / 50.0).ln())) as usize;
        let rounds = QUERIES.div_ceil(k);
        let found: usize = (0..rounds)
            .map(|round| {
                let pairs = pairs::<A>(dim, k, 1000 * k as u64 + round as u64);
                match kept {
                    BundleForm::Trits => {
                        pairs.found_in(&Bundle::of(&pairs.bound).unwrap().to_vector().unwrap())
                    }
                    BundleForm::Counts => pairs.found_by_counts(k),
                }
            })
            .sum();
        let share = found as f64 / (rounds * k) as f64;
        let theory = retrieval_probability::<A>(kept, dim, k, k).unwrap();
        println!("{} {kept:?}: k = {k}, D = {dim}: {share:.3}, theory {theory:.3}", A::KIND);
        assert_near!(share, theory, abs = 0.02, "{} {kept:?} {k}", A::KIND);
        assert!((0.5..0.97).contains(&theory), "an informative case");
    }
}

#[test]
fn z3_by_trits() {
    simulate::<Z3>(BundleForm::Trits);
}

#[test]
fn z3_by_counts() {
    simulate::<Z3>(BundleForm::Counts);
}

#[test]
fn bipolar_by_trits() {
    simulate::<Bipolar>(BundleForm::Trits);
}

#[test]
fn bipolar_by_counts() {
    simulate::<Bipolar>(BundleForm::Counts);
}

#[test]
fn ternary_by_trits() {
    simulate::<Ternary>(BundleForm::Trits);
}

#[test]
fn ternary_by_counts() {
    simulate::<Ternary>(BundleForm::Counts);
}

/// 500 pairs in 10,000 dimensions, as in `examples/key_value.rs`.
#[test]
fn five_hundred_pairs() {
    let all: Vec<Pairs<Z3>> = (0..4).map(|seed| pairs(10_000, 500, seed)).collect();
    let share = |found: usize| found as f64 / 2000.0;
    let plain = all.iter().map(|p| p.found_in(&Bundle::of(&p.bound).unwrap().to_vector().unwrap())).sum();
    let balanced = all.iter().map(|p| p.found_in(&bundle_balanced(&p.bound, 3).unwrap())).sum();
    let counts = all.iter().map(|p| p.found_by_counts(500)).sum();
    let [plain, balanced, counts] = [plain, balanced, counts].map(share);
    println!("two bits {plain:.4}, two bits balanced {balanced:.4}, counts {counts:.4}");
    // The theory, minus three standard deviations of 2000 queries.
    assert!(plain > 0.932 - 0.017, "{plain}");
    assert!(balanced > 0.97, "{balanced}");
    assert!(counts > 0.995, "{counts}");
}

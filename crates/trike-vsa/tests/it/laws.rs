//! The laws of the algebras, as properties.

use proptest::prelude::*;
use trike_testkit::assert_near;
use trike_vsa::{
    Algebra, Bipolar, Bundle, PackedTritVec, SparseVec, Ternary, Z3, bind, bundle_many, bundle_weighted,
    cosine_similarity, dot, hamming_distance, inverse, matches, negate, ngram, permute, similarity, unbind,
};

/// Around the boundaries of words and cache lines.
fn dims() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..200, Just(511), Just(512), Just(513), Just(1000)]
}

fn vector<A: Algebra>(dim: usize, seed: u64) -> PackedTritVec<A> {
    PackedTritVec::random(dim, seed).expect("a vector")
}

/// Laws of all algebras.
fn common<A: Algebra>(dim: usize, seed: u64, by: isize) {
    let [a, b, c] = [0, 1, 2].map(|i| vector::<A>(dim, seed ^ i));
    // Binding is associative and commutative, with an identity.
    let ab = bind(&a, &b).unwrap();
    assert_eq!(ab, bind(&b, &a).unwrap());
    assert_eq!(bind(&ab, &c).unwrap(), bind(&a, &bind(&b, &c).unwrap()).unwrap());
    let one = PackedTritVec::identity(dim).unwrap();
    assert_eq!(bind(&a, &one).unwrap(), a);
    assert_eq!(unbind(&a, &one).unwrap(), a);
    assert_eq!(unbind(&ab, &b).unwrap(), bind(&ab, &inverse(&b).unwrap()).unwrap());
    assert_eq!(inverse(&inverse(&a).unwrap()).unwrap(), a);
    assert_eq!(negate(&negate(&a).unwrap()).unwrap(), a);
    assert_eq!(dot(&a, &negate(&b).unwrap()).unwrap(), -dot(&a, &b).unwrap());
    // Rotations form a group and distribute over binding, bundling and similarity.
    let turned = permute(&a, by).unwrap();
    assert_eq!(
        permute(&turned, by.wrapping_neg()).unwrap(),
        if by == isize::MIN { turned.clone() } else { a.clone() }
    );
    assert_eq!(permute(&permute(&a, 3).unwrap(), -10).unwrap(), permute(&a, -7).unwrap());
    assert_eq!(permute(&a, dim as isize).unwrap(), a);
    assert_eq!(bind(&turned, &permute(&b, by).unwrap()).unwrap(), permute(&ab, by).unwrap());
    assert_eq!(similarity(&turned, &permute(&b, by).unwrap()).unwrap(), similarity(&a, &b).unwrap());
    // Scores match their definitions.
    let (x, y) = (a.to_trits(), b.to_trits());
    assert_eq!(dot(&a, &b).unwrap(), x.iter().zip(&y).map(|(x, y)| i32::from(x * y)).sum::<i32>());
    assert_eq!(matches(&a, &b).unwrap(), x.iter().zip(&y).filter(|(x, y)| x == y).count());
    assert_eq!(hamming_distance(&a, &b).unwrap(), dim - matches(&a, &b).unwrap());
    let norm = |v: &[i8]| (v.iter().filter(|&&t| t != 0).count() as f64).sqrt();
    let cosine = f64::from(dot(&a, &b).unwrap()) / (norm(&x) * norm(&y));
    if norm(&x) * norm(&y) > 0.0 {
        assert_near!(cosine_similarity(&a, &b).unwrap(), cosine, abs = 1e-9);
    }
    if x.iter().any(|t| *t != 0) {
        assert_near!(similarity(&a, &a).unwrap(), 1.0, abs = 1e-12);
    }
    // Every representation of a vector converts back to it.
    assert_eq!(PackedTritVec::<A>::from_trits(&x).unwrap(), a);
    assert_eq!(PackedTritVec::<A>::from_view(a.view()).unwrap(), a);
    assert_eq!(SparseVec::from_packed(&a).to_packed::<A>().unwrap(), a);
    assert_eq!(SparseVec::from_packed(&a).dot(&b).unwrap(), dot(&a, &b).unwrap());
    // N-grams depend on the order.
    let gram = ngram(&[&a, &b, &c]).unwrap();
    let by_hand = bind(&permute(&a, 2).unwrap(), &bind(&permute(&b, 1).unwrap(), &c).unwrap()).unwrap();
    assert_eq!(gram, by_hand);

    let vectors: Vec<_> = (0..7).map(|i| vector::<A>(dim, seed.wrapping_add(10 + i))).collect();
    let mut bundle = Bundle::of(&vectors).unwrap();
    // Bundling is commutative, and a vector can be removed.
    assert_eq!(bundle_many(vectors.iter().rev()).unwrap(), bundle.to_vector().unwrap());
    assert_eq!(bundle_weighted(vectors.iter().map(|v| (v, 1))).unwrap(), bundle.to_vector().unwrap());
    bundle.remove(&vectors[3]).unwrap();
    let others: Vec<_> = vectors.iter().enumerate().filter(|(i, _)| *i != 3).map(|(_, v)| v).collect();
    assert_eq!(bundle.to_vector().unwrap(), bundle_many(others.iter().copied()).unwrap());
    // Binding or rotating a bundle is the same as binding or rotating its vectors.
    let bound: Vec<_> = others.iter().map(|v| bind(v, &a).unwrap()).collect();
    let rotated: Vec<_> = bound.iter().map(|v| permute(v, by).unwrap()).collect();
    bundle.bind(&a).unwrap();
    assert_eq!(bundle.sums().unwrap(), Bundle::of(&bound).unwrap().sums().unwrap());
    bundle.permute(by).unwrap();
    assert_eq!(bundle.to_vector().unwrap(), bundle_many(&rotated).unwrap());
    // The score of a bundle is the sum of the scores of its vectors.
    let scores: i64 = rotated
        .iter()
        .map(
            |v| if A::KIND == Z3::KIND { matches(v, &b).unwrap() as i64 } else { dot(v, &b).unwrap().into() },
        )
        .sum();
    assert_eq!(bundle.score(&b).unwrap(), scores);
    // Merging two parts gives the whole bundle.
    let (first, second) = rotated.split_at(2);
    let mut merged = Bundle::of(first).unwrap();
    merged.merge(&Bundle::of(second).unwrap()).unwrap();
    assert_eq!(merged.sums().unwrap(), bundle.sums().unwrap());
    assert_eq!((merged.total(), merged.squared_weights()), (bundle.total(), bundle.squared_weights()));
    // Subtracting a vector and adding it again does not change the difference of two similarities.
    let difference = |bundle: &Bundle<A>| bundle.similarity(&b).unwrap() - bundle.similarity(&c).unwrap();
    let mut pushed = bundle.clone();
    pushed.add_negative(&a, 5).unwrap();
    pushed.add_weighted(&a, 5).unwrap();
    assert_near!(difference(&pushed), difference(&bundle), abs = 1e-9);
    // Serialization keeps everything.
    let json = serde_json::to_string(&bundle).unwrap();
    let back: Bundle<A> = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (back.sums().unwrap(), back.squared_weights()),
        (bundle.sums().unwrap(), bundle.squared_weights())
    );
    let back: PackedTritVec<A> = serde_json::from_str(&serde_json::to_string(&a).unwrap()).unwrap();
    assert_eq!(back, a);
    let sparse = SparseVec::from_packed(&a);
    assert_eq!(serde_json::from_str::<SparseVec>(&serde_json::to_string(&sparse).unwrap()).unwrap(), sparse);
}

/// Unbinding is the exact inverse of binding.
fn exact<A: Algebra>(dim: usize, seed: u64) {
    let [a, b] = [0, 1].map(|i| vector::<A>(dim, seed ^ i));
    assert_eq!(unbind(&bind(&a, &b).unwrap(), &b).unwrap(), a);
    assert_eq!(bind(&b, &inverse(&b).unwrap()).unwrap(), PackedTritVec::identity(dim).unwrap());
    let mut bundle = Bundle::of([&a, &b]).unwrap();
    let before = bundle.sums().unwrap();
    bundle.bind(&a).unwrap();
    bundle.unbind(&a).unwrap();
    assert_eq!(bundle.sums().unwrap(), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn z3(dim in dims(), seed: u64, by: isize) {
        common::<Z3>(dim, seed, by);
        exact::<Z3>(dim, seed);
    }

    #[test]
    fn bipolar(dim in dims(), seed: u64, by: isize) {
        common::<Bipolar>(dim, seed, by);
        exact::<Bipolar>(dim, seed);
        let a = vector::<Bipolar>(dim, seed);
        prop_assert_eq!(inverse(&a).unwrap(), a);
    }

    #[test]
    fn ternary(dim in dims(), seed: u64, by: isize) {
        common::<Ternary>(dim, seed, by);
        // Exact where the key is nonzero, zero elsewhere.
        let [a, key] = [0, 1].map(|i| vector::<Ternary>(dim, seed ^ i));
        let kept: Vec<i8> = a.to_trits().iter().zip(key.to_trits()).map(|(a, k)| a * k * k).collect();
        prop_assert_eq!(unbind(&bind(&a, &key).unwrap(), &key).unwrap().to_trits(), kept);
        let dense = PackedTritVec::random_dense(dim, seed).unwrap();
        prop_assert_eq!(unbind(&bind(&a, &dense).unwrap(), &dense).unwrap(), a);
    }

    #[test]
    fn single_dimensions_are_edited_alike_in_vectors_and_bundles(dim in 1usize..200, seed: u64, at: prop::sample::Index) {
        let mut vectors: Vec<_> = (0..5).map(|i| vector::<Z3>(dim, seed ^ i)).collect();
        let mut bundle = Bundle::of(&vectors).unwrap();
        let index = at.index(dim);
        let (from, to) = (vectors[2].get(index).unwrap(), vectors[3].get(index).unwrap());
        bundle.replace(index, from, to, 1).unwrap();
        vectors[2].set(index, to).unwrap();
        prop_assert_eq!(bundle.sums().unwrap(), Bundle::of(&vectors).unwrap().sums().unwrap());
        // A few dimensions of a sparse vector.
        let sparse = SparseVec::new(dim, vec![(index, -trike_trit::Trit::N)]).unwrap();
        let before = bundle.sums().unwrap();
        bundle.add_sparse(&sparse, 3).unwrap();
        prop_assert_eq!(bundle.sums().unwrap()[index], before[index] + 3);
        bundle.remove_sparse(&sparse, 3).unwrap();
        prop_assert_eq!(bundle.sums().unwrap(), before);
    }
}

/// The mean similarity of a bundle of `k` vectors to its vectors is within five standard deviations of the theory, which is an
/// approximation for large `k`.
fn falls_with_the_root<A: Algebra>() {
    let dim = 20_000;
    for k in [3, 9, 25, 101] {
        let vectors = PackedTritVec::<A>::random_set(dim, k, 5).unwrap();
        let bundle = bundle_many(&vectors).unwrap();
        let expected = trike_vsa::capacity::expected_similarity::<A>(k).unwrap();
        let mean = vectors.iter().map(|v| similarity(&bundle, v).unwrap()).sum::<f64>() / k as f64;
        // The mean over k vectors has a smaller deviation by sqrt(k); small bundles exceed the normal approximation.
        let width = 5.0 / (dim as f64).sqrt() / (k as f64).sqrt() + 0.45 / k as f64 * expected;
        assert_near!(mean, expected, abs = width, "{} {k}", A::KIND);
        let random = PackedTritVec::random(dim, 99).unwrap();
        assert_near!(similarity(&bundle, &random).unwrap(), 0.0, abs = 5.0 / (dim as f64).sqrt());
    }
}

#[test]
fn similarity_falls_with_the_root_of_the_number() {
    falls_with_the_root::<Z3>();
    falls_with_the_root::<Bipolar>();
    falls_with_the_root::<Ternary>();
}

#[test]
fn unbinding_with_a_sparse_key_costs_the_root_of_its_density() {
    for density in [0.1, 0.5, 2.0 / 3.0, 0.9, 1.0] {
        let key = PackedTritVec::<Ternary>::random_with_density(50_000, density, 1).unwrap();
        let value = PackedTritVec::random(50_000, 2).unwrap();
        let back = unbind(&bind(&key, &value).unwrap(), &key).unwrap();
        let cosine = cosine_similarity(&back, &value).unwrap();
        assert_near!(cosine, density.sqrt(), abs = 0.015, "{density}");
    }
}

#[test]
fn the_same_seed_gives_the_same_vector_and_another_an_unrelated_one() {
    let trits = |v: PackedTritVec<Z3>| v.to_trits();
    assert_eq!(trits(vector(20, 1)), [-1, -1, -1, 0, 0, -1, 1, 1, 0, 0, 1, -1, 1, -1, 0, -1, 0, 0, -1, -1]);
    // A vector is a prefix of the longer vectors with the same seed.
    assert_eq!(trits(vector(1000, 7))[..100], trits(vector(100, 7)));
    let set = PackedTritVec::<Z3>::random_set(10_000, 20, 3).unwrap();
    assert_eq!(set[..5], PackedTritVec::random_set(10_000, 5, 3).unwrap());
    for i in 0..20 {
        for j in 0..i {
            assert_near!(similarity(&set[i], &set[j]).unwrap(), 0.0, abs = 5.0 / (2.0f64 * 10_000.0).sqrt());
        }
    }
}

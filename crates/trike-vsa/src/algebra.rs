//! The three algebras behind one trait.

use std::fmt;

use serde::{Deserialize, Serialize};
use trike_popcount::{BitCounter, Cpu, PlaneVector, TritOps, TritPlanes, TritPlanesMut, TritScore};

use crate::error::VsaError;
use crate::random;

mod sealed {
    pub trait SealedAlgebra {}
    impl SealedAlgebra for super::Z3 {}
    impl SealedAlgebra for super::Bipolar {}
    impl SealedAlgebra for super::Ternary {}
}

/// An algebra as a value instead of a type, for files and serialized data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AlgebraKind {
    /// [`Z3`].
    Z3,
    /// [`Bipolar`].
    Bipolar,
    /// [`Ternary`].
    Ternary,
}

impl AlgebraKind {
    /// Every algebra.
    pub const ALL: [Self; 3] = [Self::Z3, Self::Bipolar, Self::Ternary];
}

impl fmt::Display for AlgebraKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Z3 => "z3",
            Self::Bipolar => "bipolar",
            Self::Ternary => "ternary",
        })
    }
}

/// An algebra of trit vectors: defines binding, bundling and similarity.
///
/// An algebra is a type, so that mixing vectors of two algebras does not compile:
///
/// ```compile_fail
/// use trike_vsa::{Bipolar, PackedTritVec, Z3, bind};
///
/// let a = PackedTritVec::<Z3>::random(100, 1)?;
/// let b = PackedTritVec::<Bipolar>::random(100, 2)?;
/// bind(&a, &b)?;
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
///
/// The methods are the plane-level form of [`bind`](crate::bind()) and the other functions of the crate; algorithms that are
/// generic over the algebra are written in terms of them. All of them operate on whole words, never on single trits.
pub trait Algebra:
    sealed::SealedAlgebra + Copy + fmt::Debug + Default + PartialEq + Eq + Send + Sync + 'static
{
    /// The algebra as a value.
    const KIND: AlgebraKind;
    /// The score by which vectors are compared.
    const SCORE: TritScore;
    /// Whether a trit may be 0.
    const ZEROS: bool;
    /// Squared signal-to-noise ratio of a bundle's counts, times `k / D`; see [`capacity`](crate::capacity).
    const COUNT_EFFICIENCY: f64;

    /// The identity element of binding.
    fn identity(out: TritPlanesMut<'_>) -> Result<(), VsaError>;
    /// Binds two vectors: the result is dissimilar to both.
    fn bind(cpu: &Cpu, a: TritPlanes<'_>, b: TritPlanes<'_>, out: TritPlanesMut<'_>) -> Result<(), VsaError>;
    /// Unbinds a key from a bound vector.
    fn unbind(
        cpu: &Cpu,
        bound: TritPlanes<'_>,
        key: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), VsaError>;
    /// The inverse under binding.
    fn inverse<'a>(a: TritPlanes<'a>) -> TritPlanes<'a>;
    /// Binds a key to everything in a counter.
    fn bind_counts(cpu: &Cpu, counter: &mut BitCounter, key: TritPlanes<'_>) -> Result<(), VsaError>;
    /// Unbinds a key from everything in a counter.
    fn unbind_counts(cpu: &Cpu, counter: &mut BitCounter, key: TritPlanes<'_>) -> Result<(), VsaError>;
    /// The trits of a bundle; `squares` is the sum of the squared weights of its vectors.
    fn decide(cpu: &Cpu, counter: &BitCounter, squares: u64, out: TritPlanesMut<'_>) -> Result<(), VsaError>;
    /// Similarity of two vectors with the given score: 1 for equal vectors, about 0 for random ones.
    fn similarity(cpu: &Cpu, score: i32, a: TritPlanes<'_>, b: TritPlanes<'_>) -> f64;
    /// The score in excess of its expectation for random vectors, as a weight: about 0 for dissimilar vectors, negative for
    /// opposite ones.
    fn excess(score: i32, dim: usize) -> i64;
    /// A word of random trits, as its two planes, generated from a seed.
    fn random_word(seed: u64, word: u64) -> [u64; 2];
}

/// Addition modulo 3: a trit represents a rotation by a third of a turn.
///
/// Binding is `a + b` modulo 3 with -1 for 2; unbinding is the difference, exact for every trit including zeros. A
/// bundle takes the most frequent of the three values, and similarity counts matches:
/// `(3 matches - D) / 2D` is 1 for equal vectors and 0 on average for random ones. Binding with zeros loses no
/// information, and three values carry more information than two. This is the recommended default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Z3;

/// The bipolar form of "multiply, add, permute" (MAP-B): -1 and +1, without zeros.
///
/// Binding is the product, which is its own inverse; a bundle takes the sign of the sum, with ties broken by a
/// fixed random vector; the similarity is the cosine, `dot / D`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bipolar;

/// "Multiply, add, permute" on trits of any density.
///
/// Binding is the product. Zeros are not invertible: `unbind(bind(a, b), a)` keeps `b` only where `a` is nonzero, and its
/// cosine with `b` is the square root of the density of `a` (0.816 for uniform trits, 1 for keys without zeros: see
/// [`PackedTritVec::random_dense`](crate::PackedTritVec::random_dense)). A bundle takes the sign of the sum where its magnitude
/// exceeds 0.612 standard deviations, the threshold that loses least, and 0 elsewhere; the similarity is the cosine.
///
/// Searches rank by the dot product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ternary;

fn all_ones(mut out: TritPlanesMut<'_>, len: usize) -> Result<(), VsaError> {
    let words = len.div_ceil(64);
    let mut pos = vec![u64::MAX; words];
    if let Some(last) = pos.last_mut() {
        *last = random::live(len);
    }
    Ok(out.copy_from(TritPlanes::new(&pos, &vec![0; words], len)?)?)
}

impl Algebra for Z3 {
    const KIND: AlgebraKind = AlgebraKind::Z3;
    const SCORE: TritScore = TritScore::Matches;
    const ZEROS: bool = true;
    const COUNT_EFFICIENCY: f64 = 2.0;

    fn identity(mut out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        let zeros = PlaneVector::zeros(out.len())?;
        Ok(out.copy_from(zeros.view())?)
    }

    fn bind(cpu: &Cpu, a: TritPlanes<'_>, b: TritPlanes<'_>, out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        Ok(cpu.trit_sum_mod3(a, b, out)?)
    }

    fn unbind(
        cpu: &Cpu,
        bound: TritPlanes<'_>,
        key: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), VsaError> {
        Ok(cpu.trit_difference_mod3(bound, key, out)?)
    }

    fn inverse<'a>(a: TritPlanes<'a>) -> TritPlanes<'a> {
        a.negated()
    }

    fn bind_counts(cpu: &Cpu, counter: &mut BitCounter, key: TritPlanes<'_>) -> Result<(), VsaError> {
        Ok(counter.sum_mod3(cpu, key)?)
    }

    fn unbind_counts(cpu: &Cpu, counter: &mut BitCounter, key: TritPlanes<'_>) -> Result<(), VsaError> {
        Ok(counter.sum_mod3(cpu, key.negated())?)
    }

    fn decide(cpu: &Cpu, counter: &BitCounter, _: u64, out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        Ok(counter.plurality(cpu, out)?)
    }

    fn similarity(_: &Cpu, score: i32, a: TritPlanes<'_>, _: TritPlanes<'_>) -> f64 {
        let dim = a.len() as f64;
        (3.0 * f64::from(score) - dim) / (2.0 * dim)
    }

    fn excess(score: i32, dim: usize) -> i64 {
        3 * i64::from(score) - dim as i64
    }

    fn random_word(seed: u64, word: u64) -> [u64; 2] {
        random::uniform(seed, word)
    }
}

impl Algebra for Bipolar {
    const KIND: AlgebraKind = AlgebraKind::Bipolar;
    const SCORE: TritScore = TritScore::Dot;
    const ZEROS: bool = false;
    const COUNT_EFFICIENCY: f64 = 1.0;

    fn identity(out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        let len = out.len();
        all_ones(out, len)
    }

    fn bind(cpu: &Cpu, a: TritPlanes<'_>, b: TritPlanes<'_>, out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        Ok(cpu.trit_product(a, b, out)?)
    }

    fn unbind(
        cpu: &Cpu,
        bound: TritPlanes<'_>,
        key: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), VsaError> {
        Ok(cpu.trit_product(bound, key, out)?)
    }

    fn inverse<'a>(a: TritPlanes<'a>) -> TritPlanes<'a> {
        a
    }

    fn bind_counts(cpu: &Cpu, counter: &mut BitCounter, key: TritPlanes<'_>) -> Result<(), VsaError> {
        Ok(counter.product(cpu, key)?)
    }

    fn unbind_counts(cpu: &Cpu, counter: &mut BitCounter, key: TritPlanes<'_>) -> Result<(), VsaError> {
        Ok(counter.product(cpu, key)?)
    }

    fn decide(cpu: &Cpu, counter: &BitCounter, _: u64, out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        if counter.total() % 2 == 1 {
            // A sum of an odd number of signs is never zero.
            return Ok(counter.majority(cpu, 0, out)?);
        }
        let mut signs = PlaneVector::zeros(counter.len())?;
        counter.majority(cpu, 0, signs.view_mut())?;
        let ties = random::ties(counter.len())?;
        Ok(cpu.trit_overlay(signs.view(), ties.view(), out)?)
    }

    fn similarity(_: &Cpu, score: i32, a: TritPlanes<'_>, _: TritPlanes<'_>) -> f64 {
        f64::from(score) / a.len() as f64
    }

    fn excess(score: i32, _: usize) -> i64 {
        score.into()
    }

    fn random_word(seed: u64, word: u64) -> [u64; 2] {
        let bits = random::bits(seed, word, 0);
        [bits, !bits]
    }
}

impl Algebra for Ternary {
    const KIND: AlgebraKind = AlgebraKind::Ternary;
    const SCORE: TritScore = TritScore::Dot;
    const ZEROS: bool = true;
    const COUNT_EFFICIENCY: f64 = 1.0;

    fn identity(out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        let len = out.len();
        all_ones(out, len)
    }

    fn bind(cpu: &Cpu, a: TritPlanes<'_>, b: TritPlanes<'_>, out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        Ok(cpu.trit_product(a, b, out)?)
    }

    fn unbind(
        cpu: &Cpu,
        bound: TritPlanes<'_>,
        key: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), VsaError> {
        Ok(cpu.trit_product(bound, key, out)?)
    }

    fn inverse<'a>(a: TritPlanes<'a>) -> TritPlanes<'a> {
        a
    }

    fn bind_counts(cpu: &Cpu, counter: &mut BitCounter, key: TritPlanes<'_>) -> Result<(), VsaError> {
        Ok(counter.product(cpu, key)?)
    }

    fn unbind_counts(cpu: &Cpu, counter: &mut BitCounter, key: TritPlanes<'_>) -> Result<(), VsaError> {
        Ok(counter.product(cpu, key)?)
    }

    fn decide(cpu: &Cpu, counter: &BitCounter, squares: u64, out: TritPlanesMut<'_>) -> Result<(), VsaError> {
        Ok(counter.majority(cpu, threshold(cpu, counter, squares), out)?)
    }

    fn similarity(cpu: &Cpu, score: i32, a: TritPlanes<'_>, b: TritPlanes<'_>) -> f64 {
        let norms = f64::from(cpu.trit_nonzeros(a)) * f64::from(cpu.trit_nonzeros(b));
        if norms == 0.0 { 0.0 } else { f64::from(score) / norms.sqrt() }
    }

    fn excess(score: i32, _: usize) -> i64 {
        score.into()
    }

    fn random_word(seed: u64, word: u64) -> [u64; 2] {
        random::uniform(seed, word)
    }
}

/// Best threshold for keeping the sign of a sum, in standard deviations: the maximum of `2 phi(c)^2 / Q(c)`.
const BEST_CUT: f64 = 0.612;

/// The largest sum that becomes 0.
fn threshold(cpu: &Cpu, counter: &BitCounter, squares: u64) -> u32 {
    cut(counter.nonzeros(cpu).unsigned_abs(), counter.len(), counter.total(), squares)
}

/// [`threshold`] for a bundle with this many nonzeros, counted with their weights.
pub(crate) fn cut(nonzeros: u64, dim: usize, total: u32, squares: u64) -> u32 {
    let places = dim as f64 * f64::from(total);
    if places == 0.0 {
        return 0;
    }
    let density = nonzeros as f64 / places;
    let deviation = (density * squares as f64).sqrt();
    // Sums are integers, so the cut lies halfway between two of them. The conversion maps negative numbers to 0.
    (BEST_CUT * deviation - 0.5).round() as u32
}

//! Text encoding by byte n-grams.

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::{VsaError, check_range};
use crate::ops::{bind_into, permute};
use crate::vector::PackedTritVec;

/// Maximum number of bytes of an n-gram.
const MAX_RUN: usize = 64;
/// Number of n-grams that are buffered before they are counted, sixteen per pass over the counts.
const BATCH: usize = 64;

/// Encodes texts as bundles of their byte n-grams: texts of one language or one author are similar.
///
/// An n-gram is the binding of the vectors of its bytes, each rotated by its distance from the end
/// ([`ngram`](crate::ngram)).
///
/// ```
/// use trike_vsa::{TextEncoder, Z3, similarity};
///
/// let encoder = TextEncoder::<Z3>::new(10_000, 3, 1)?;
/// let text = |s| encoder.encode(s).unwrap().to_vector().unwrap();
/// let [a, b, c] = ["the cat sat on the mat", "the cat sat on the chair", "xylophones quiz jazzy folk"].map(text);
/// assert!(similarity(&a, &b)? > similarity(&a, &c)? + 0.2);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextEncoder<A: Algebra = Z3> {
    /// The rotated vectors of all byte values, for every distance from the end of an n-gram.
    bytes: Vec<Vec<PackedTritVec<A>>>,
    dim: usize,
}

impl<A: Algebra> TextEncoder<A> {
    /// An encoder with n-grams of `n` bytes; the byte vectors depend on `seed` only.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for an `n` outside 1 to 64, and if `dim` is 0 or too large.
    pub fn new(dim: usize, n: usize, seed: u64) -> Result<Self, VsaError> {
        check_range("bytes of an n-gram", 1, MAX_RUN, n)?;
        let vectors = PackedTritVec::random_set(dim, 256, seed)?;
        let rotated = |by: usize| vectors.iter().map(|v| permute(v, by as isize)).collect();
        Ok(Self { bytes: (0..n).map(rotated).collect::<Result<_, VsaError>>()?, dim })
    }

    /// Number of bytes of an n-gram.
    pub fn n(&self) -> usize {
        self.bytes.len()
    }

    /// Number of dimensions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The bundle of all n-grams of a text.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for a text shorter than one n-gram, [`VsaError::Popcount`] for one of more than 2^31 bytes.
    pub fn encode(&self, text: &str) -> Result<Bundle<A>, VsaError> {
        let mut bundle = Bundle::new(self.dim)?;
        self.add_to(&mut bundle, text)?;
        Ok(bundle)
    }

    /// Adds all n-grams of a text to a bundle.
    ///
    /// # Errors
    ///
    /// As [`TextEncoder::encode`], and [`VsaError::Dimension`] for a bundle with another number of dimensions.
    pub fn add_to(&self, bundle: &mut Bundle<A>, text: &str) -> Result<(), VsaError> {
        check_range("bytes of a text", self.n(), usize::MAX, text.len())?;
        let mut grams: Vec<PackedTritVec<A>> =
            (0..BATCH).map(|_| PackedTritVec::blank(self.dim)).collect::<Result<_, VsaError>>()?;
        let mut spare = PackedTritVec::blank(self.dim)?;
        let mut ready = 0;
        for run in text.as_bytes().windows(self.n()) {
            let gram = &mut grams[ready];
            let mut rotated =
                self.bytes.iter().zip(run.iter().rev()).map(|(set, &byte)| &set[usize::from(byte)]);
            let first = rotated.next().ok_or(VsaError::Empty { what: "an n-gram" })?;
            match rotated.next() {
                Some(second) => bind_into(first, second, gram)?,
                None => gram.clone_from(first),
            }
            for vector in rotated {
                bind_into(gram, vector, &mut spare)?;
                std::mem::swap(gram, &mut spare);
            }
            ready += 1;
            if ready == BATCH {
                bundle.add_all(&grams)?;
                ready = 0;
            }
        }
        bundle.add_all(&grams[..ready])
    }
}

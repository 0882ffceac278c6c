//! Centroid classifier: one vector per class.

use serde::{Deserialize, Serialize};

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::{VsaError, check_dim, check_range};
use crate::memory::{Hit, ItemMemory};
use crate::vector::PackedTritVec;

/// A classifier that bundles the examples of each class; a vector is assigned to the class with the most similar bundle.
///
/// [`CentroidClassifier::add`] trains in one pass over the examples. [`CentroidClassifier::correct`] is online and learns only from
/// errors: a misclassified example is added to its own class and subtracted from the predicted one.
///
/// ```
/// use trike_vsa::{CentroidClassifier, TextEncoder, Z3};
///
/// let encoder = TextEncoder::<Z3>::new(4096, 3, 1)?;
/// let text = |s| encoder.encode(s).unwrap().to_vector().unwrap();
/// let mut language = CentroidClassifier::new(4096, 2)?;
/// language.add(0, &text("the quick brown fox jumps over the lazy dog and the cat"))?;
/// language.add(1, &text("der schnelle braune fuchs springt \u{fc}ber den faulen hund und die katze"))?;
/// assert_eq!(language.classify(&text("the dog and the fox"))?.index, 0);
/// assert_eq!(language.classify(&text("der hund und der fuchs"))?.index, 1);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct CentroidClassifier<A: Algebra = Z3> {
    classes: Vec<Bundle<A>>,
    /// The bundles, reduced to trits.
    centroids: ItemMemory<A>,
}

/// Maximum number of classes, so that a mistyped number does not exhaust memory.
const MAX_CLASSES: usize = 1 << 20;

impl<A: Algebra> CentroidClassifier<A> {
    /// A classifier without examples.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for no dimensions, and for no classes or more than 2^20.
    pub fn new(dim: usize, classes: usize) -> Result<Self, VsaError> {
        check_range("classes", 1, MAX_CLASSES, classes)?;
        let (mut bundles, mut centroids) = (Vec::new(), ItemMemory::new(dim)?);
        for _ in 0..classes {
            let bundle = Bundle::new(dim)?;
            centroids.push(&bundle.to_vector()?)?;
            bundles.push(bundle);
        }
        Ok(Self { classes: bundles, centroids })
    }

    /// Number of dimensions.
    pub fn dim(&self) -> usize {
        self.centroids.dim()
    }

    /// The bundle of a class; `None` if out of range.
    pub fn class(&self, class: usize) -> Option<&Bundle<A>> {
        self.classes.get(class)
    }

    /// Adds an example of a class.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `class` is out of range, [`VsaError::Dimension`].
    pub fn add(&mut self, class: usize, example: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.class_mut(class)?.add(example)?;
        self.decide(class)
    }

    /// Adds the vectors of a bundle to a class, such as all n-grams of a text.
    ///
    /// # Errors
    ///
    /// As [`CentroidClassifier::add`].
    pub fn add_bundle(&mut self, class: usize, examples: &Bundle<A>) -> Result<(), VsaError> {
        self.class_mut(class)?.merge(examples)?;
        self.decide(class)
    }

    /// Learns from an example only if it is misclassified, and returns whether it was.
    ///
    /// # Errors
    ///
    /// As [`CentroidClassifier::add`].
    pub fn correct(&mut self, class: usize, example: &PackedTritVec<A>) -> Result<bool, VsaError> {
        self.class_mut(class)?;
        let taken_for = self.classify(example)?.index;
        if taken_for == class {
            return Ok(false);
        }
        self.class_mut(class)?.add(example)?;
        self.class_mut(taken_for)?.add_negative(example, 1)?;
        self.decide(class)?;
        self.decide(taken_for)?;
        Ok(true)
    }

    /// The class that a vector is most similar to.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`].
    pub fn classify(&self, vector: &PackedTritVec<A>) -> Result<Hit, VsaError> {
        check_dim("a vector to be classified", self.dim(), vector.dim())?;
        self.centroids.nearest(vector)
    }

    fn class_mut(&mut self, class: usize) -> Result<&mut Bundle<A>, VsaError> {
        let maximum = self.classes.len() - 1;
        let error = VsaError::Range { what: "a class", minimum: 0, maximum, got: class };
        self.classes.get_mut(class).ok_or(error)
    }

    fn decide(&mut self, class: usize) -> Result<(), VsaError> {
        self.centroids.replace(class, &self.classes[class].to_vector()?)
    }
}

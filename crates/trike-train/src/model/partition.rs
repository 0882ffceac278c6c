//! Partition of a decoder's weights among ranks.

use std::ops::Range;

use trike_nn::WeightName;

/// The elements of each weight that a rank holds. Shapes are rows and columns of whole weights.
pub(crate) trait Partition {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// The elements of a weight that a rank holds; `None` if it holds none.
    fn part(&self, name: WeightName, shape: (usize, usize), rank: usize) -> Option<Range<usize>>;

    /// The elements whose optimizer state a rank holds.
    fn state(&self, name: WeightName, shape: (usize, usize), rank: usize) -> Option<Range<usize>> {
        self.part(name, shape, rank)
    }

    /// The ranks from which a whole weight or its state is assembled, in element order.
    fn sources(&self, name: WeightName, shape: (usize, usize)) -> Vec<(usize, Range<usize>)>;
}

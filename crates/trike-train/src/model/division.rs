//! Parts of a decoder's weights that ranks hold.

use std::ops::Range;

use trike_nn::WeightName;

/// Which elements of each weight a rank holds. Shapes are rows and columns of whole weights.
pub(crate) trait Division {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// The elements of a weight that a rank holds; `None` for a weight that it does not have.
    fn part(&self, name: WeightName, shape: (usize, usize), rank: usize) -> Option<Range<usize>>;

    /// Those of its optimizer's state.
    fn state(&self, name: WeightName, shape: (usize, usize), rank: usize) -> Option<Range<usize>> {
        self.part(name, shape, rank)
    }

    /// The ranks from which a whole weight or its state is read, in the order of their elements.
    fn sources(&self, name: WeightName, shape: (usize, usize)) -> Vec<(usize, Range<usize>)>;
}

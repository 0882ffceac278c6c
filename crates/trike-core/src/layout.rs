//! In-memory layouts of ternary matrices for kernels.

use std::{fmt, str::FromStr};

use crate::OptionError;

/// The layout of a resident ternary matrix. It does not affect the values, only the memory use and the run time of a product.
///
/// A backend chooses a layout for each matrix at load time, from a table for its kind of hardware; not every backend supports
/// every layout for every tensor.
///
/// ```
/// use trike_core::Layout;
///
/// assert_eq!("base3".parse::<Layout>()?, Layout::Base3);
/// assert_eq!(Layout::TwoBit.to_string(), "two-bit");
/// # Ok::<(), trike_core::OptionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Two bits per weight: the least work per weight, and supported by every backend for every tensor.
    TwoBit,
    /// Five weights per byte, 1.6 bits per weight: the smallest size unless most weights are zero.
    Base3,
    /// Nonzero weights only, one or two bytes each: for unstructured sparsity of about 90 % or more.
    Sparse,
    /// One bit per weight plus one sign bit per nonzero weight.
    Bitmap,
    /// Two bits per weight, with all-zero blocks omitted: for structured sparsity.
    Blocks,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Self; 5] = [Self::TwoBit, Self::Base3, Self::Sparse, Self::Bitmap, Self::Blocks];

    const NAMES: [&str; 5] = ["two-bit", "base3", "sparse", "bitmap", "blocks"];

    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Layout {
    type Err = OptionError;

    fn from_str(name: &str) -> Result<Self, OptionError> {
        Self::ALL.into_iter().find(|layout| layout.name() == name).ok_or_else(|| OptionError::Unknown {
            field: "layout",
            accepted: &Self::NAMES,
            got: name.to_owned(),
        })
    }
}

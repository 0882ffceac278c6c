//! How a ternary matrix lies in the memory that kernels read.

use std::{fmt, str::FromStr};

use crate::OptionError;

/// The layout of a resident ternary matrix. It changes no value: only bytes, and the time of a product.
///
/// A backend chooses one for each matrix when it is loaded, by a table for its kind of hardware; not every backend has every
/// layout for every tensor.
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
    /// Two bits per weight: the least work for each, and the one that every backend has for every tensor.
    TwoBit,
    /// Five weights per byte, 1.6 bits each: the fewest bytes for weights that are not mostly zero.
    Base3,
    /// The nonzero weights only, one or two bytes each: for zeros without structure, from about 90 % of them.
    Sparse,
    /// One bit per weight and one sign for each nonzero weight.
    Bitmap,
    /// Two bits per weight, without the blocks that are all zero: for zeros with structure.
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

//! Enumerations of a tensor's encoding and scale granularity.

use std::{fmt, str::FromStr};

/// Maximum number of planes of a tensor.
pub const MAX_DEPTH: usize = 6;

/// Packing of the trits of a plane.
///
/// | encoding | bits per trit | best for |
/// |---|---|---|
/// | [`Planes`](Self::Planes) | 2 | popcount, hypervectors, edits |
/// | [`TwoBit`](Self::TwoBit) | 2 | bytewise integer dot products, edits |
/// | [`Base3`](Self::Base3) | 1.6 | memory |
/// | [`Bitmap`](Self::Bitmap) | 1 + density | 50 to 90 % zeros |
/// | [`RowCompressed`](Self::RowCompressed) | about 8 per nonzero | over 90 % zeros |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Two bit planes of u64 words, `pos & neg == 0`.
    Planes,
    /// Codes `trit + 1` in two bits.
    TwoBit,
    /// Five trits per byte.
    Base3,
    /// One bit per trit, set if it is nonzero, and one sign bit per nonzero.
    Bitmap,
    /// Gaps between nonzeros, one byte each.
    RowCompressed,
}

impl Encoding {
    /// Every encoding.
    pub const ALL: [Self; 5] = [Self::Planes, Self::TwoBit, Self::Base3, Self::Bitmap, Self::RowCompressed];

    /// The name used by the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Planes => "planes",
            Self::TwoBit => "2bit",
            Self::Base3 => "base3",
            Self::Bitmap => "bitmap",
            Self::RowCompressed => "csr",
        }
    }
}

/// Coupling of the scales of a tensor's planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coupling {
    /// One scale per plane: `w = mean + s0 t0 + s1 t1 + ...`.
    #[default]
    Free,
    /// One scale for all planes, base 3: `w = mean + s (t0 + t1 / 3 + t2 / 9 + ...)`.
    Tied,
}

impl Coupling {
    /// The name used in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Tied => "tied",
        }
    }
}

/// Weights along a row that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupSize {
    /// 32 weights.
    G32,
    /// 64 weights.
    G64,
    /// 128 weights.
    G128,
    /// 256 weights.
    G256,
}

impl GroupSize {
    /// Every group size in ascending order.
    pub const ALL: [Self; 4] = [Self::G32, Self::G64, Self::G128, Self::G256];

    /// The number of weights.
    pub const fn get(self) -> usize {
        match self {
            Self::G32 => 32,
            Self::G64 => 64,
            Self::G128 => 128,
            Self::G256 => 256,
        }
    }

    /// The group size of `n` weights; `None` unless `n` is 32, 64, 128 or 256.
    pub const fn from_usize(n: usize) -> Option<Self> {
        match n {
            32 => Some(Self::G32),
            64 => Some(Self::G64),
            128 => Some(Self::G128),
            256 => Some(Self::G256),
            _ => None,
        }
    }
}

/// Scale granularity: the set of weights that share one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// The whole tensor (each plane with [`Coupling::Free`]).
    Tensor,
    /// A row.
    Row,
    /// A group along a row; the last group of a row may be shorter.
    Group(GroupSize),
}

impl Granularity {
    /// Scales per row of `cols` weights: 1 unless the scales are per group.
    pub const fn groups_per_row(self, cols: usize) -> usize {
        match self {
            Self::Tensor | Self::Row => 1,
            Self::Group(size) => cols.div_ceil(size.get()),
        }
    }

    /// The group size; `None` unless the scales are per group.
    pub const fn group(self) -> Option<GroupSize> {
        match self {
            Self::Tensor | Self::Row => None,
            Self::Group(size) => Some(size),
        }
    }

    /// Weights of a row of `cols` that share a scale: `cols` unless the scales are per group.
    pub const fn group_len(self, cols: usize) -> usize {
        match self {
            Self::Tensor | Self::Row => cols,
            Self::Group(size) => size.get(),
        }
    }

    /// Number of scales in one set for a `rows x cols` tensor; `None` on overflow.
    pub const fn count(self, rows: usize, cols: usize) -> Option<usize> {
        match self {
            Self::Tensor => Some(1),
            Self::Row => Some(rows),
            Self::Group(_) => rows.checked_mul(self.groups_per_row(cols)),
        }
    }
}

/// An unknown name of an encoding, coupling or granularity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{got}`: expected one of {expected}")]
pub struct ParseKindError {
    /// Parsed option: `encoding`, `coupling` or `granularity`.
    pub kind: &'static str,
    /// The text given.
    pub got: String,
    /// The accepted names.
    pub expected: &'static str,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Encoding {
    type Err = ParseKindError;

    fn from_str(s: &str) -> Result<Self, ParseKindError> {
        let expected = "planes, 2bit, base3, bitmap, csr";
        Self::ALL.into_iter().find(|e| e.name() == s).ok_or_else(|| ParseKindError {
            kind: "encoding",
            got: s.to_owned(),
            expected,
        })
    }
}

impl fmt::Display for Coupling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Coupling {
    type Err = ParseKindError;

    fn from_str(s: &str) -> Result<Self, ParseKindError> {
        [Self::Free, Self::Tied].into_iter().find(|c| c.name() == s).ok_or_else(|| ParseKindError {
            kind: "coupling",
            got: s.to_owned(),
            expected: "free, tied",
        })
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor => f.pad("tensor"),
            Self::Row => f.pad("row"),
            Self::Group(size) => f.pad(&format!("group{}", size.get())),
        }
    }
}

impl FromStr for Granularity {
    type Err = ParseKindError;

    fn from_str(s: &str) -> Result<Self, ParseKindError> {
        let group = || s.strip_prefix("group")?.parse().ok().and_then(GroupSize::from_usize);
        match s {
            "tensor" => Ok(Self::Tensor),
            "row" => Ok(Self::Row),
            _ => group().map(Self::Group).ok_or_else(|| ParseKindError {
                kind: "granularity",
                got: s.to_owned(),
                expected: "tensor, row, group32, group64, group128, group256",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Coupling, Encoding, Granularity, GroupSize};

    #[test]
    fn names_parse_back_and_others_are_refused() {
        for encoding in Encoding::ALL {
            assert_eq!(encoding.to_string().parse(), Ok(encoding));
        }
        for coupling in [Coupling::Free, Coupling::Tied] {
            assert_eq!(coupling.to_string().parse(), Ok(coupling));
        }
        let groups = GroupSize::ALL.map(Granularity::Group);
        for granularity in [Granularity::Tensor, Granularity::Row].into_iter().chain(groups) {
            assert_eq!(granularity.to_string().parse(), Ok(granularity));
        }
        let error = "tq9".parse::<Encoding>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown encoding `tq9`: expected one of planes, 2bit, base3, bitmap, csr"
        );
        assert!("group48".parse::<Granularity>().is_err());
    }
}

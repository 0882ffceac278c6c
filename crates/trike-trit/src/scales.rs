//! Scales and means of a tensor and their granularity.

use half::f16;

use crate::{Coupling, Granularity, TritError};

/// Scales or means as stored: f16 or f32, never converted implicitly.
#[derive(Clone, Debug, PartialEq)]
pub enum ScaleValues {
    /// Two bytes each.
    F16(Vec<f16>),
    /// Four bytes each.
    F32(Vec<f32>),
}

impl ScaleValues {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F16(v) => v.len(),
            Self::F32(v) => v.len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Value `i` as f32, exactly; `None` if out of range.
    pub fn get(&self, i: usize) -> Option<f32> {
        match self {
            Self::F16(v) => v.get(i).map(|x| x.to_f32()),
            Self::F32(v) => v.get(i).copied(),
        }
    }

    /// All values as f32, exactly.
    pub fn iter(&self) -> impl Iterator<Item = f32> + '_ {
        (0..self.len()).map(|i| self.at(i))
    }

    /// Size of the values in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::F16(v) => 2 * v.len(),
            Self::F32(v) => 4 * v.len(),
        }
    }

    /// f16 if every value is exactly representable in f16, otherwise f32.
    ///
    /// ```
    /// use trike_trit::ScaleValues;
    ///
    /// assert!(matches!(ScaleValues::exact(&[0.5, 2.0]), ScaleValues::F16(_)));
    /// assert!(matches!(ScaleValues::exact(&[0.1]), ScaleValues::F32(_)));
    /// ```
    pub fn exact(values: &[f32]) -> Self {
        let halves: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
        if halves.iter().zip(values).all(|(h, v)| h.to_f32().to_bits() == v.to_bits()) {
            Self::F16(halves)
        } else {
            Self::F32(values.to_vec())
        }
    }

    /// The values at `indices`, in that order and in the same type; out-of-range indices are skipped.
    pub(crate) fn select(&self, indices: impl Iterator<Item = usize>) -> Self {
        match self {
            Self::F16(v) => Self::F16(indices.filter_map(|i| v.get(i).copied()).collect()),
            Self::F32(v) => Self::F32(indices.filter_map(|i| v.get(i).copied()).collect()),
        }
    }

    /// Value `i`, which must be below `len`; callers rely on earlier [`TritError::Length`] checks.
    pub(crate) fn at(&self, i: usize) -> f32 {
        match self {
            Self::F16(v) => v[i].to_f32(),
            Self::F32(v) => v[i],
        }
    }

    fn check(&self, what: &'static str, expected: usize) -> Result<(), TritError> {
        if self.len() != expected {
            return Err(TritError::Length { what, expected, got: self.len() });
        }
        match self.iter().enumerate().find(|(_, v)| !v.is_finite()) {
            Some((index, value)) => Err(TritError::NonFinite { what, index, value }),
            None => Ok(()),
        }
    }
}

impl From<Vec<f32>> for ScaleValues {
    fn from(values: Vec<f32>) -> Self {
        Self::F32(values)
    }
}

impl From<Vec<f16>> for ScaleValues {
    fn from(values: Vec<f16>) -> Self {
        Self::F16(values)
    }
}

/// The scales of a tensor and, for an asymmetric fit, means of the same granularity.
///
/// Scales are ordered `[plane][row][group]` with [`Coupling::Free`] and `[row][group]` with [`Coupling::Tied`].
/// [`Granularity::Row`] has no group axis, [`Granularity::Tensor`] no row axis either. Means are ordered
/// `[row][group]` in the same granularity and never have a plane axis. Lengths and finiteness are checked when
/// the tensor is created, because only then is the shape known.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    granularity: Granularity,
    values: ScaleValues,
    means: Option<ScaleValues>,
}

impl Scales {
    /// Scales and means as stored, in the order of [`Scales`].
    pub fn new(granularity: Granularity, values: impl Into<ScaleValues>, means: Option<ScaleValues>) -> Self {
        Self { granularity, values: values.into(), means }
    }

    /// One f32 scale for a tensor with one plane.
    pub fn tensor(scale: f32) -> Self {
        Self::new(Granularity::Tensor, vec![scale], None)
    }

    /// The granularity of scales and means.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// The scales.
    pub fn values(&self) -> &ScaleValues {
        &self.values
    }

    /// The means of an asymmetric fit.
    pub fn means(&self) -> Option<&ScaleValues> {
        self.means.as_ref()
    }

    /// Size of scales and means in bytes.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.means.as_ref().map_or(0, ScaleValues::bytes)
    }

    pub(crate) fn check(
        &self,
        rows: usize,
        cols: usize,
        depth: usize,
        coupling: Coupling,
    ) -> Result<(), TritError> {
        let set = self.granularity.count(rows, cols).ok_or(TritError::Shape { rows, cols })?;
        let sets = if coupling == Coupling::Free { depth } else { 1 };
        self.values.check("scale", set.checked_mul(sets).ok_or(TritError::Shape { rows, cols })?)?;
        self.means.as_ref().map_or(Ok(()), |means| means.check("mean", set))
    }

    /// Index of a mean, and of a scale of plane 0.
    pub(crate) fn index(&self, cols: usize, row: usize, group: usize) -> usize {
        match self.granularity {
            Granularity::Tensor => 0,
            Granularity::Row => row,
            Granularity::Group(_) => row * self.granularity.groups_per_row(cols) + group,
        }
    }

    /// The scales of the given `rows`, in that order, for a tensor of `shape` with `sets` sets of scales.
    pub(crate) fn select_rows(&self, shape: (usize, usize), sets: usize, rows: &[usize]) -> Self {
        let groups = self.granularity.groups_per_row(shape.1);
        let pick = |sets: usize| {
            (0..sets).flat_map(move |set| {
                rows.iter().flat_map(move |&r| (0..groups).map(move |g| (set * shape.0 + r) * groups + g))
            })
        };
        match self.granularity {
            Granularity::Tensor => self.clone(),
            Granularity::Row | Granularity::Group(_) => Self {
                granularity: self.granularity,
                values: self.values.select(pick(sets)),
                means: self.means.as_ref().map(|m| m.select(pick(1))),
            },
        }
    }
}

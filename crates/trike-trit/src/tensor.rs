//! The ternary tensor.

use std::borrow::Cow;

use crate::{
    Coupling, Encoding, Hadamard, MAX_DEPTH, Scales, SparsityMetadata, TritData, TritError, TritRow,
    data::bit_words, plane::Plane,
};

/// A `rows x cols` (output x input features) matrix of ternary weights in 1 to 6 planes, with scales.
///
/// With [`Coupling::Free`] a weight is `mean + s0 t0 + s1 t1 + ...`, with [`Coupling::Tied`] it is
/// `mean + s (t0 + t1 / 3 + t2 / 9 + ...)`; the mean is 0 unless the fit is asymmetric. The tensor carries its shape,
/// [`Coupling`], [`Granularity`](crate::Granularity) and [`Encoding`]; its methods never take the shape as an argument.
///
/// With a [`rotation`](Self::rotation) `H` the tensor represents `W = T H`, where `T` is the matrix of trits and scales; a
/// kernel rotates the inputs: `W x = T (H x)`. [`dequantize`](Self::dequantize) returns `W`.
///
/// ```
/// use trike_trit::{Encoding, Scales, Trit, TritTensor};
///
/// let mut tensor = TritTensor::from_trits(2, 3, &[1, 0, -1, 0, 0, 1], Encoding::TwoBit, Scales::tensor(0.5))?;
/// assert_eq!(tensor.dequantize(), [0.5, 0.0, -0.5, 0.0, 0.0, 0.5]);
/// assert_eq!(tensor.zeros(), 3);
///
/// tensor.set(0, 1, 0, Trit::N)?;
/// assert_eq!(tensor.dequantize()[3], -0.5);
/// assert_eq!(tensor.to_encoding(Encoding::Base3)?.dequantize(), tensor.dequantize());
/// # Ok::<(), trike_trit::TritError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TritTensor {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) planes: Vec<Plane>,
    pub(crate) sparsity: Vec<SparsityMetadata>,
    coupling: Coupling,
    scales: Scales,
    rotation: Option<Hadamard>,
}

impl TritTensor {
    /// A tensor from its raw buffers, one [`TritData`] per plane, all in the same encoding.
    ///
    /// # Errors
    ///
    /// An empty or unaddressable shape, a number of planes other than 1 to 6, mixed encodings, a buffer of the wrong
    /// length, overlapping bits, an invalid code, padding that is not zero trits, offsets out of order, the wrong
    /// number of scales or means, or one that is not finite. The check is one linear pass.
    pub fn new(
        rows: usize,
        cols: usize,
        planes: Vec<TritData>,
        coupling: Coupling,
        scales: Scales,
    ) -> Result<Self, TritError> {
        check_shape(rows, cols)?;
        let depth = planes.len();
        let Some(encoding) = planes.first().map(TritData::encoding).filter(|_| depth <= MAX_DEPTH) else {
            return Err(TritError::Depth { got: depth });
        };
        scales.check(rows, cols, depth, coupling)?;
        let mut sparsity = Vec::with_capacity(depth);
        for (plane, data) in planes.iter().enumerate() {
            if data.encoding() != encoding {
                return Err(TritError::MixedEncodings { plane, expected: encoding, got: data.encoding() });
            }
            data.check_lengths(plane, rows, cols)?;
            sparsity.push(index(data, plane, rows, cols)?);
        }
        let planes = planes.into_iter().map(Plane::from).collect();
        Ok(Self { rows, cols, planes, sparsity, coupling, scales, rotation: None })
    }

    /// The same trits with a rotation of the inputs, or without one.
    ///
    /// ```
    /// use trike_trit::{Encoding, Hadamard, Scales, TritTensor};
    ///
    /// let tensor = TritTensor::from_trits(1, 2, &[1, 0], Encoding::TwoBit, Scales::tensor(2.0))?;
    /// let rotated = tensor.with_rotation(Some(Hadamard::new(2)?))?;
    /// let half = 2.0 * 0.5f32.sqrt();
    /// assert!(rotated.dequantize().iter().all(|w| (w - half).abs() < 1e-6));
    /// # Ok::<(), trike_trit::TritError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TritError::Rotation`] unless the number of columns is a multiple of the block size.
    pub fn with_rotation(mut self, rotation: Option<Hadamard>) -> Result<Self, TritError> {
        if let Some(rotation) = rotation.filter(|r| !self.cols.is_multiple_of(r.block())) {
            let what = "input rotation block size";
            return Err(TritError::Rotation { what, got: rotation.block() });
        }
        self.rotation = rotation;
        Ok(self)
    }

    /// The same trits with other scales and means.
    ///
    /// ```
    /// use trike_trit::{Encoding, Scales, TritTensor};
    ///
    /// let tensor = TritTensor::from_trits(1, 2, &[1, -1], Encoding::TwoBit, Scales::tensor(2.0))?;
    /// assert_eq!(tensor.with_scales(Scales::tensor(0.5))?.dequantize(), [0.5, -0.5]);
    /// # Ok::<(), trike_trit::TritError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The wrong number of scales or means, or one that is not finite.
    pub fn with_scales(mut self, scales: Scales) -> Result<Self, TritError> {
        scales.check(self.rows, self.cols, self.depth(), self.coupling)?;
        self.scales = scales;
        Ok(self)
    }

    /// The rotation of the inputs.
    pub fn rotation(&self) -> Option<Hadamard> {
        self.rotation
    }

    /// A tensor with one plane from `rows * cols` numbers -1, 0 and 1 in row-major order.
    ///
    /// # Errors
    ///
    /// A length other than `rows * cols`, a number that is not a trit, and the errors of [`new`](Self::new).
    pub fn from_trits(
        rows: usize,
        cols: usize,
        trits: &[i8],
        encoding: Encoding,
        scales: Scales,
    ) -> Result<Self, TritError> {
        Self::from_planes(rows, cols, &[trits], encoding, Coupling::Free, scales)
    }

    /// A tensor from one slice of `rows * cols` numbers -1, 0 and 1 per plane.
    ///
    /// # Errors
    ///
    /// See [`from_trits`](Self::from_trits).
    pub fn from_planes(
        rows: usize,
        cols: usize,
        planes: &[&[i8]],
        encoding: Encoding,
        coupling: Coupling,
        scales: Scales,
    ) -> Result<Self, TritError> {
        let expected = check_shape(rows, cols)?;
        if let Some(trits) = planes.iter().find(|trits| trits.len() != expected) {
            return Err(TritError::Length { what: "trits", expected, got: trits.len() });
        }
        Self::from_rows(rows, cols, planes.len(), encoding, coupling, scales, |plane, row, trits| {
            trits.copy_from_slice(&planes[plane][row * cols..][..cols]);
        })
    }

    /// A tensor of `depth` planes from its rows, one at a time: `row(plane, index, trits)` writes numbers -1, 0 and 1.
    ///
    /// # Errors
    ///
    /// See [`from_trits`](Self::from_trits).
    pub fn from_rows(
        rows: usize,
        cols: usize,
        depth: usize,
        encoding: Encoding,
        coupling: Coupling,
        scales: Scales,
        mut row: impl FnMut(usize, usize, &mut [i8]),
    ) -> Result<Self, TritError> {
        check_shape(rows, cols)?;
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(TritError::Depth { got: depth });
        }
        let mut trits = vec![0; cols];
        let mut planes = Vec::with_capacity(depth);
        for plane in 0..depth {
            let mut data = TritData::empty(encoding, rows, cols);
            for index in 0..rows {
                row(plane, index, &mut trits);
                if let Some(col) = trits.iter().position(|t| !(-1..=1).contains(t)) {
                    return Err(TritError::Value { index: index * cols + col, value: trits[col] });
                }
                data.push_row(&trits)?;
            }
            planes.push(data);
        }
        Self::new(rows, cols, planes, coupling, scales)
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of planes, 1 to 6.
    pub fn depth(&self) -> usize {
        self.planes.len()
    }

    /// The encoding of all planes.
    pub fn encoding(&self) -> Encoding {
        self.planes[0].encoding()
    }

    /// The coupling of the planes.
    pub fn coupling(&self) -> Coupling {
        self.coupling
    }

    /// The scales, in the order documented at [`Scales`].
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// The raw buffers of a plane, equal to a fresh encoding of its trits; `None` if out of range. They are borrowed unless the
    /// plane is in a compressed encoding and was edited: then each call repacks all rows; call [`compact`](Self::compact)
    /// to repack once.
    pub fn data(&self, plane: usize) -> Option<Cow<'_, TritData>> {
        self.planes.get(plane).map(Plane::data)
    }

    /// Scales per row and plane.
    pub fn groups_per_row(&self) -> usize {
        self.scales.granularity().groups_per_row(self.cols)
    }

    /// Weights of a row that share a scale; the last group of a row may be shorter.
    pub fn group_len(&self) -> usize {
        self.scales.granularity().group_len(self.cols)
    }

    /// Scale of the trits of `plane` in a group of a row; with [`Coupling::Tied`], already divided by `3^plane`.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`].
    pub fn scale(&self, plane: usize, row: usize, group: usize) -> Result<f32, TritError> {
        self.check_plane(plane)?;
        self.check_row(row)?;
        check_index("group", group, self.groups_per_row())?;
        Ok(self.scale_at(plane, row, group))
    }

    /// The mean of a group of a row, 0 if the fit is symmetric.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`].
    pub fn mean(&self, row: usize, group: usize) -> Result<f32, TritError> {
        self.check_row(row)?;
        check_index("group", group, self.groups_per_row())?;
        Ok(self.mean_at(row, group))
    }

    fn scale_at(&self, plane: usize, row: usize, group: usize) -> f32 {
        let first = self.scales.index(self.cols, row, group);
        let values = self.scales.values();
        match self.coupling {
            Coupling::Free => values.at(first + plane * (values.len() / self.depth())),
            Coupling::Tied => values.at(first) / [1.0, 3.0, 9.0, 27.0, 81.0, 243.0][plane],
        }
    }

    fn mean_at(&self, row: usize, group: usize) -> f32 {
        self.scales.means().map_or(0.0, |means| means.at(self.scales.index(self.cols, row, group)))
    }

    /// One row of one plane.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`].
    pub fn row(&self, plane: usize, row: usize) -> Result<TritRow<'_>, TritError> {
        self.check_plane(plane)?;
        self.check_row(row)?;
        Ok(TritRow::new(&self.planes[plane], row, self.cols))
    }

    /// Decodes a row of a plane into `cols` numbers -1, 0 and 1.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`], or [`TritError::Length`] unless `out` has `cols` elements.
    pub fn read_row(&self, plane: usize, row: usize, out: &mut [i8]) -> Result<(), TritError> {
        check_len("output row", self.cols, out.len())?;
        self.row(plane, row)?.read(0, out)
    }

    /// Writes the `cols` weights of a row to `out`. Accumulates in f32: the mean, then scale times trit, plane by plane;
    /// then applies the rotation, if any.
    ///
    /// # Errors
    ///
    /// See [`read_row`](Self::read_row).
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) -> Result<(), TritError> {
        check_len("output row", self.cols, out.len())?;
        self.check_row(row)?;
        self.dequantize_into(row, &mut vec![0; self.cols], out);
        Ok(())
    }

    /// All weights, row-major.
    pub fn dequantize(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        let mut trits = vec![0; self.cols];
        for (row, out) in out.chunks_exact_mut(self.cols).enumerate() {
            self.dequantize_into(row, &mut trits, out);
        }
        out
    }

    fn dequantize_into(&self, row: usize, trits: &mut [i8], out: &mut [f32]) {
        let len = self.group_len();
        for (group, out) in out.chunks_mut(len).enumerate() {
            out.fill(self.mean_at(row, group));
        }
        for (plane, data) in self.planes.iter().enumerate() {
            data.read(row, self.cols, 0, trits);
            for (group, (out, trits)) in out.chunks_mut(len).zip(trits.chunks(len)).enumerate() {
                let scale = self.scale_at(plane, row, group);
                for (w, &t) in out.iter_mut().zip(trits) {
                    *w += scale * f32::from(t);
                }
            }
        }
        if let Some(rotation) = self.rotation {
            // `with_rotation` checked that the block size divides the row length.
            rotation.apply_blocks(out);
        }
    }

    /// The same tensor in another encoding; trits, scales and means are unchanged.
    ///
    /// # Errors
    ///
    /// [`TritError::TooLarge`] when a compressed encoding exceeds 32-bit row offsets.
    pub fn to_encoding(&self, encoding: Encoding) -> Result<Self, TritError> {
        if encoding == self.encoding() {
            return Ok(self.clone());
        }
        let rows: Vec<usize> = (0..self.rows).collect();
        Ok(Self {
            rows: self.rows,
            cols: self.cols,
            planes: self.repack(encoding, &rows)?.into_iter().map(Plane::from).collect(),
            sparsity: self.sparsity.clone(),
            coupling: self.coupling,
            scales: self.scales.clone(),
            rotation: self.rotation,
        })
    }

    /// A selection or permutation of rows: row `i` of the result is row `rows[i]` of this tensor, with its scales.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`] for a row out of range, [`TritError::Shape`] if `rows` is empty.
    pub fn select_rows(&self, rows: &[usize]) -> Result<Self, TritError> {
        check_shape(rows.len(), self.cols)?;
        rows.iter().try_for_each(|&r| self.check_row(r))?;
        let sets = if self.coupling == Coupling::Free { self.depth() } else { 1 };
        let scales = self.scales.select_rows((self.rows, self.cols), sets, rows);
        let planes = self.repack(self.encoding(), rows)?;
        Self::new(rows.len(), self.cols, planes, self.coupling, scales)?.with_rotation(self.rotation)
    }

    fn repack(&self, encoding: Encoding, rows: &[usize]) -> Result<Vec<TritData>, TritError> {
        let mut trits = vec![0; self.cols];
        let mut planes = Vec::with_capacity(self.depth());
        for data in &self.planes {
            let mut packed = TritData::empty(encoding, rows.len(), self.cols);
            for &row in rows {
                data.read(row, self.cols, 0, &mut trits);
                packed.push_row(&trits)?;
            }
            planes.push(packed);
        }
        Ok(planes)
    }

    /// The sparsity index of a plane; `None` if out of range.
    pub fn sparsity(&self, plane: usize) -> Option<&SparsityMetadata> {
        self.sparsity.get(plane)
    }

    /// Number of zero trits in all planes.
    pub fn zeros(&self) -> u64 {
        self.sparsity.iter().map(SparsityMetadata::zeros).sum()
    }

    /// Stored size in bytes of trits, scales and means: the size of [`data`](Self::data) (including the row offsets of a
    /// compressed encoding), whether or not rows were edited. Excludes the derived [`SparsityMetadata`] and the memory of
    /// edited rows, which [`memory_bytes`](Self::memory_bytes) includes.
    pub fn bytes(&self) -> usize {
        self.planes.iter().map(Plane::bytes).sum::<usize>() + self.scales.bytes()
    }

    /// Current memory size in bytes of trits, scales and means. It equals [`bytes`](Self::bytes) unless the encoding is
    /// compressed and rows were edited. In that case, until [`compact`](Self::compact), a plane takes four additional bytes per
    /// row, and per edited row at most
    ///
    /// * [`Encoding::Bitmap`]: one bit per column (rounded up to whole words) plus 64 bytes;
    /// * [`Encoding::RowCompressed`]: six bytes per nonzero, 40 per 2048 columns (rounded up), plus 64 bytes.
    ///
    /// Excludes the derived [`SparsityMetadata`].
    pub fn memory_bytes(&self) -> usize {
        self.planes.iter().map(Plane::memory_bytes).sum::<usize>() + self.scales.bytes()
    }

    /// Repacks planes with edited rows in compressed encodings, in one pass, and releases their spare capacity. The trits are
    /// unchanged.
    pub fn compact(&mut self) {
        self.planes.iter_mut().for_each(Plane::compact);
    }

    /// `8 * bytes() / (rows * cols)`.
    pub fn bits_per_weight(&self) -> f64 {
        8.0 * self.bytes() as f64 / (self.rows as f64 * self.cols as f64)
    }

    pub(crate) fn check_plane(&self, plane: usize) -> Result<(), TritError> {
        check_index("plane", plane, self.depth())
    }

    pub(crate) fn check_row(&self, row: usize) -> Result<(), TritError> {
        check_index("row", row, self.rows)
    }
}

/// Checks the rows of a plane and builds its sparsity index, in one pass.
pub(crate) fn index(
    data: &TritData,
    plane: usize,
    rows: usize,
    cols: usize,
) -> Result<SparsityMetadata, TritError> {
    let mut sparsity = SparsityMetadata::with_capacity(rows, cols);
    let mut nonzero = vec![0; bit_words(cols)];
    for row in 0..rows {
        nonzero.fill(0);
        data.scan_row((plane, row), cols, &mut nonzero)?;
        sparsity.push_row(cols, &nonzero);
    }
    Ok(sparsity)
}

/// The number of elements; an error unless both sides are valid and the weights would be addressable as f32.
fn check_shape(rows: usize, cols: usize) -> Result<usize, TritError> {
    let side = 1..=u32::MAX as usize;
    rows.checked_mul(cols)
        .filter(|n| side.contains(&rows) && side.contains(&cols) && *n <= isize::MAX as usize / 4)
        .ok_or(TritError::Shape { rows, cols })
}

pub(crate) fn check_index(what: &'static str, index: usize, limit: usize) -> Result<(), TritError> {
    if index < limit { Ok(()) } else { Err(TritError::OutOfRange { what, index, limit }) }
}

fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), TritError> {
    if expected == got { Ok(()) } else { Err(TritError::Length { what, expected, got }) }
}

//! `TritTensor`.

use std::sync::OnceLock;

use numpy::{PyArray1, PyArray2, PyArrayDyn};
use pyo3::{
    exceptions::{PyIndexError, PyValueError},
    prelude::*,
    types::{PyDict, PyType},
};
use trike::{
    ActivationPolicy, ActivationPrecision, Encoding, Trit, TritTensor,
    cpu::{CpuOps, Matrix, choose_layout},
    trit::{Coupling, Edit, Granularity, Hadamard, ScaleValues, Scales, TritError},
};

use crate::{
    arrays::{array, array_of, borrow, converted, shape},
    errors, host, parts,
};

/// `IndexError` for an index out of range, `ValueError` for everything else.
fn place(error: TritError) -> PyErr {
    match error {
        TritError::OutOfRange { .. } => PyIndexError::new_err(error.to_string()),
        error => errors::value(error),
    }
}

/// Scales from an array; the error names the shape that the granularity requires.
fn scales(
    values: &Bound<'_, PyAny>,
    means: Option<&Bound<'_, PyAny>>,
    granularity: Granularity,
    scale_type: &str,
    [sets, rows, cols]: [usize; 3],
) -> PyResult<Scales> {
    let read = |value: &Bound<'_, PyAny>, what, sets: usize| -> PyResult<ScaleValues> {
        let expected = parts::scale_shape(granularity, sets, rows, cols);
        let axes = vec!["n"; expected.len()];
        let found = borrow::<f32>(value, what, &axes).map_err(|e| {
            if e.is_instance_of::<PyValueError>(value.py()) { wrong(value, what, &expected) } else { e }
        })?;
        found.expect(&expected)?;
        parts::scale_values(found.values()?, what, scale_type)
    };
    let means = means.map(|means| read(means, "means", 1)).transpose()?;
    Ok(Scales::new(granularity, read(values, "scales", sets)?, means))
}

fn wrong(value: &Bound<'_, PyAny>, what: &str, expected: &[usize]) -> PyErr {
    let got = value.getattr("shape").map_or_else(|_| "no shape".to_owned(), |s| s.to_string());
    PyValueError::new_err(format!(
        "{what}: expected a contiguous array of shape {}, got {got}",
        shape(expected)
    ))
}

/// A matrix of ternary weights, rows x cols (outputs x inputs), in 1 to 6 planes with scales.
#[pyclass(name = "TritTensor", module = "trike")]
pub(crate) struct PyTritTensor {
    pub(crate) inner: TritTensor,
    /// The weights packed for the kernels on the first product; empty after an edit.
    packed: OnceLock<Matrix>,
}

impl From<TritTensor> for PyTritTensor {
    fn from(inner: TritTensor) -> Self {
        Self { inner, packed: OnceLock::new() }
    }
}

impl PyTritTensor {
    fn packed(&self, cpu: &trike::Cpu) -> Result<&Matrix, trike::cpu::CpuError> {
        if let Some(packed) = self.packed.get() {
            return Ok(packed);
        }
        let packed = cpu.pack(&self.inner, choose_layout(&self.inner, cpu.isa()))?;
        Ok(self.packed.get_or_init(|| packed.into()))
    }

    fn sets(&self) -> usize {
        match self.inner.coupling() {
            Coupling::Free => self.inner.depth(),
            Coupling::Tied => 1,
        }
    }

    fn floats<'py>(
        &self,
        py: Python<'py>,
        values: &ScaleValues,
        sets: usize,
    ) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let (rows, cols) = (self.inner.rows(), self.inner.cols());
        let sides = parts::scale_shape(self.inner.scales().granularity(), sets, rows, cols);
        array_of(py, values.iter().collect(), &sides)
    }
}

#[pymethods]
impl PyTritTensor {
    #[new]
    #[pyo3(signature = (trits, scales, *, granularity="row", encoding="planes", coupling="free", means=None, scale_type="f32"))]
    fn new(
        trits: &Bound<'_, PyAny>,
        scales: &Bound<'_, PyAny>,
        granularity: &str,
        encoding: &str,
        coupling: &str,
        means: Option<&Bound<'_, PyAny>>,
        scale_type: &str,
    ) -> PyResult<Self> {
        let axes: &[&str] = match trits.getattr("ndim").and_then(|n| n.extract::<usize>()) {
            Ok(3) => &["planes", "rows", "cols"],
            _ => &["rows", "cols"],
        };
        let all = borrow::<i8>(trits, "trits", axes)?;
        let (depth, rows, cols) = match *all.shape() {
            [depth, rows, cols] => (depth, rows, cols),
            [rows, cols] => (1, rows, cols),
            _ => return Err(all.wrong("(rows, cols) or (planes, rows, cols)")),
        };
        let granularity: Granularity = granularity.parse().map_err(errors::value)?;
        let encoding: Encoding = encoding.parse().map_err(errors::value)?;
        let coupling: Coupling = coupling.parse().map_err(errors::value)?;
        let sets = if coupling == Coupling::Free { depth } else { 1 };
        let scales = self::scales(scales, means, granularity, scale_type, [sets, rows, cols])?;
        let values = all.copied()?;
        let inner = trits.py().detach(|| {
            let planes: Vec<&[i8]> = values.chunks_exact((rows * cols).max(1)).collect();
            TritTensor::from_planes(rows, cols, &planes, encoding, coupling, scales)
        });
        Ok(inner.map_err(errors::value)?.into())
    }

    /// A tensor from the buffers returned by `buffers`, one dict per plane; the contents are validated.
    #[classmethod]
    #[pyo3(signature = (shape, buffers, scales, *, granularity="row", coupling="free", means=None, scale_type="f32"))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn from_buffers(
        _class: &Bound<'_, PyType>,
        shape: (usize, usize),
        buffers: Vec<Bound<'_, PyDict>>,
        scales: &Bound<'_, PyAny>,
        granularity: &str,
        coupling: &str,
        means: Option<&Bound<'_, PyAny>>,
        scale_type: &str,
    ) -> PyResult<Self> {
        let granularity: Granularity = granularity.parse().map_err(errors::value)?;
        let coupling: Coupling = coupling.parse().map_err(errors::value)?;
        let sets = if coupling == Coupling::Free { buffers.len() } else { 1 };
        let scales = self::scales(scales, means, granularity, scale_type, [sets, shape.0, shape.1])?;
        let planes = buffers.iter().map(parts::read).collect::<PyResult<Vec<_>>>()?;
        Ok(TritTensor::new(shape.0, shape.1, planes, coupling, scales).map_err(errors::value)?.into())
    }

    /// (rows, cols): outputs and inputs.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.inner.rows(), self.inner.cols())
    }

    /// Number of planes, 1 to 6.
    #[getter]
    fn planes(&self) -> usize {
        self.inner.depth()
    }

    /// `planes`, `2bit`, `base3`, `bitmap` or `csr`.
    #[getter]
    fn encoding(&self) -> &'static str {
        self.inner.encoding().name()
    }

    /// `free` or `tied`.
    #[getter]
    fn coupling(&self) -> &'static str {
        self.inner.coupling().name()
    }

    /// `tensor`, `row`, or `group32` to `group256`.
    #[getter]
    fn granularity(&self) -> String {
        self.inner.scales().granularity().to_string()
    }

    /// Weights of a row that share a scale.
    #[getter]
    fn group(&self) -> usize {
        self.inner.group_len()
    }

    /// `f16` or `f32`, as the scales are stored.
    #[getter]
    fn scale_type(&self) -> &'static str {
        match self.inner.scales().values() {
            ScaleValues::F16(_) => "f16",
            ScaleValues::F32(_) => "f32",
        }
    }

    /// The scales as a new f32 array.
    #[getter]
    fn scales<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        self.floats(py, self.inner.scales().values(), self.sets())
    }

    /// The means of an asymmetric fit, or None.
    #[getter]
    fn means<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyArrayDyn<f32>>>> {
        self.inner.scales().means().map(|means| self.floats(py, means, 1)).transpose()
    }

    /// Size of the block of the inputs' Hadamard rotation, or None.
    #[getter]
    fn rotation(&self) -> Option<usize> {
        self.inner.rotation().map(Hadamard::block)
    }

    /// Stored bytes of trits, scales and means.
    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.bytes()
    }

    /// Stored bits per weight.
    #[getter]
    fn bits_per_weight(&self) -> f64 {
        self.inner.bits_per_weight()
    }

    /// Number of zero trits in all planes.
    #[getter]
    fn zeros(&self) -> u64 {
        self.inner.zeros()
    }

    /// The trits of a plane as a new int8 array of shape (rows, cols).
    #[pyo3(signature = (plane=0))]
    fn trits<'py>(&self, py: Python<'py>, plane: usize) -> PyResult<Bound<'py, PyArray2<i8>>> {
        let (rows, cols) = self.shape();
        let trits = py.detach(|| {
            let mut trits = vec![0; rows * cols];
            let mut all = trits.chunks_exact_mut(cols).enumerate();
            all.try_for_each(|(row, out)| self.inner.read_row(plane, row, out)).map(|()| trits)
        });
        array(py, trits.map_err(place)?, [rows, cols])
    }

    /// The weights as a new f32 array of shape (rows, cols).
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let weights = py.detach(|| self.inner.dequantize());
        array(py, weights, [self.inner.rows(), self.inner.cols()])
    }

    /// The buffers of a plane: a dict with `encoding` and its arrays.
    #[pyo3(signature = (plane=0))]
    fn buffers<'py>(&self, py: Python<'py>, plane: usize) -> PyResult<Bound<'py, PyDict>> {
        let data = self.inner.data(plane).ok_or_else(|| {
            PyIndexError::new_err(format!(
                "plane {plane} is out of range: expected less than {}",
                self.planes()
            ))
        })?;
        parts::write(py, &data)
    }

    /// The same tensor in another encoding.
    fn to_encoding(&self, py: Python<'_>, encoding: &str) -> PyResult<Self> {
        let encoding: Encoding = encoding.parse().map_err(errors::value)?;
        Ok(py.detach(|| self.inner.to_encoding(encoding)).map_err(errors::value)?.into())
    }

    /// The rows with these indices, with their scales.
    fn select_rows(&self, rows: Vec<usize>) -> PyResult<Self> {
        Ok(self.inner.select_rows(&rows).map_err(place)?.into())
    }

    /// The trit at an index, -1, 0 or 1.
    fn get(&self, plane: usize, row: usize, col: usize) -> PyResult<i8> {
        Ok(self.inner.get(plane, row, col).map_err(place)?.value())
    }

    /// Replaces a trit in place and returns the old one.
    fn set(&mut self, plane: usize, row: usize, col: usize, trit: i8) -> PyResult<i8> {
        let old = self.inner.set(plane, row, col, trit_of(trit)?).map_err(place)?;
        self.packed.take();
        Ok(old.value())
    }

    /// Replaces trits in place, all or nothing: a list of (plane, row, col, trit).
    fn edit(&mut self, edits: Vec<(usize, usize, usize, i8)>) -> PyResult<()> {
        let edits = edits
            .into_iter()
            .map(|(plane, row, col, trit)| Ok(Edit { plane, row, col, trit: trit_of(trit)? }))
            .collect::<PyResult<Vec<_>>>()?;
        self.inner.edit(&edits).map_err(place)?;
        self.packed.take();
        Ok(())
    }

    /// `x @ weights.T` for activations (tokens, cols): a new f32 array (tokens, rows).
    #[pyo3(signature = (x, precision="f32"))]
    fn matmul<'py>(&self, x: &Bound<'py, PyAny>, precision: &str) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let py = x.py();
        let precision = match precision {
            "f32" => ActivationPrecision::F32,
            "int16" => ActivationPrecision::Int16,
            "int8" => ActivationPolicy::Int8.precision(self.inner.scales().granularity().group()),
            got => return Err(errors::unknown("precision", got, &["f32", "int16", "int8"])),
        };
        let x = borrow::<f32>(x, "x", &["tokens", "cols"])?;
        let [tokens, width] = x.sides()?;
        if width != self.inner.cols() {
            return Err(x.wrong(&format!("(tokens, {})", self.inner.cols())));
        }
        let values = x.copied()?;
        let cpu = host::cpu()?;
        let out = py.detach(|| {
            let mut out = vec![0.0; tokens * self.inner.rows()];
            if tokens > 0 {
                cpu.linear(&values, self.packed(&cpu)?, precision, &mut out)?;
            }
            Ok(out)
        });
        array(py, out.map_err(|e: trike::cpu::CpuError| errors::value(e))?, [tokens, self.inner.rows()])
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.inner == other.inner
    }

    /// NumPy's array protocol: the weights as a new array.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(self.to_numpy(py)?.into_any(), dtype, copy)
    }

    fn __repr__(&self) -> String {
        let (rows, cols) = self.shape();
        format!(
            "TritTensor(shape=({rows}, {cols}), planes={}, coupling='{}', granularity='{}', encoding='{}', bits_per_weight={:.2})",
            self.planes(),
            self.coupling(),
            self.granularity(),
            self.encoding(),
            self.bits_per_weight()
        )
    }
}

fn trit_of(value: i8) -> PyResult<Trit> {
    Trit::from_value(value)
        .ok_or_else(|| PyValueError::new_err(format!("trit: expected -1, 0 or 1, got {value}")))
}

/// The balanced ternary digits of a number, least significant first, as an int8 array of 41 digits.
#[pyfunction]
fn trits_of(py: Python<'_>, value: i64) -> Bound<'_, PyArray1<i8>> {
    PyArray1::from_iter(py, trike::trit::trits_of(value).iter().map(|trit| trit.value()))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyTritTensor>()?;
    m.add_function(wrap_pyfunction!(trits_of, m)?)
}

//! NumPy arrays in and out: borrowed, after checking type, shape and order.

use numpy::{
    Element, PyArray, PyArray1, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn,
    PyUntypedArray, PyUntypedArrayMethods, dtype,
    ndarray::{Dim, Dimension},
};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
};

/// A borrowed array in row-major order, with its shape.
pub(crate) struct Borrowed<'py, T: Element> {
    array: PyReadonlyArrayDyn<'py, T>,
    what: &'static str,
}

/// Borrows an array with axes named `axes`, without a copy. Other objects are accepted if they support DLPack, such as CPU tensors
/// of PyTorch.
///
/// # Errors
///
/// `TypeError` for another object or element type, `ValueError` for another number of axes or an array that is not contiguous in
/// row-major order.
pub(crate) fn borrow<'py, T: Element>(
    value: &Bound<'py, PyAny>,
    what: &'static str,
    axes: &[&str],
) -> PyResult<Borrowed<'py, T>> {
    let py = value.py();
    let exported;
    let untyped = match value.cast::<PyUntypedArray>() {
        Ok(array) => array,
        Err(_) if value.hasattr("__dlpack__")? => {
            exported = py.import("numpy")?.call_method1("from_dlpack", (value,))?;
            exported.cast::<PyUntypedArray>().map_err(PyErr::from)?
        }
        Err(_) => {
            let got = value.get_type().name()?;
            return Err(PyTypeError::new_err(format!("{what}: expected a NumPy array, got {got}")));
        }
    };
    let expected = dtype::<T>(py);
    if !untyped.dtype().is_equiv_to(&expected) {
        return Err(PyTypeError::new_err(format!(
            "{what}: expected an array of {expected}, got {}",
            untyped.dtype()
        )));
    }
    if untyped.ndim() != axes.len() {
        return Err(PyValueError::new_err(format!(
            "{what}: expected shape ({}), got {}",
            names(axes),
            shape(untyped.shape())
        )));
    }
    let array = untyped.cast::<PyArrayDyn<T>>().map_err(PyErr::from)?;
    let is_aligned = (array.data() as usize).is_multiple_of(align_of::<T>());
    if !untyped.is_c_contiguous() || !is_aligned {
        return Err(PyValueError::new_err(format!(
            "{what}: expected a contiguous array in row-major order, got strides {:?} for shape {}; \
             numpy.ascontiguousarray makes a copy that is",
            untyped.strides(),
            shape(untyped.shape())
        )));
    }
    let array = array.try_readonly().map_err(PyErr::from)?;
    Ok(Borrowed { array, what })
}

impl<T: Element + Copy> Borrowed<'_, T> {
    /// A copy of the elements, row-major, for work without the GIL: other threads may write to the array meanwhile, and NumPy has
    /// no lock against that.
    pub(crate) fn copied(&self) -> PyResult<Vec<T>> {
        Ok(self.values()?.to_vec())
    }

    /// The elements, row-major; only while the GIL is held.
    pub(crate) fn values(&self) -> PyResult<&[T]> {
        Ok(self.array.as_slice()?)
    }

    /// The length of each axis.
    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// The two dimensions of a matrix.
    pub(crate) fn sides(&self) -> PyResult<[usize; 2]> {
        self.shape().try_into().map_err(|_| self.wrong("(rows, cols)"))
    }

    /// `ValueError` for any other shape.
    pub(crate) fn expect(&self, expected: &[usize]) -> PyResult<()> {
        if self.shape() == expected { Ok(()) } else { Err(self.wrong(&shape(expected))) }
    }

    /// The error for an unexpected shape.
    pub(crate) fn wrong(&self, expected: &str) -> PyErr {
        PyValueError::new_err(format!(
            "{}: expected shape {expected}, got {}",
            self.what,
            shape(self.shape())
        ))
    }
}

/// A shape in Python's notation.
pub(crate) fn shape(sides: &[usize]) -> String {
    match sides {
        [one] => format!("({one},)"),
        many => format!("({})", many.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn names(axes: &[&str]) -> String {
    if let [one] = axes { format!("{one},") } else { axes.join(", ") }
}

/// A new array over these elements, which are not copied.
pub(crate) fn array<'py, T: Element, const N: usize>(
    py: Python<'py>,
    values: Vec<T>,
    sides: [usize; N],
) -> PyResult<Bound<'py, PyArray<T, Dim<[usize; N]>>>>
where
    Dim<[usize; N]>: Dimension,
    [usize; N]: numpy::ndarray::IntoDimension<Dim = Dim<[usize; N]>>,
{
    PyArray1::from_vec(py, values).reshape(sides)
}

/// A new array with any number of axes.
pub(crate) fn array_of<'py, T: Element>(
    py: Python<'py>,
    values: Vec<T>,
    sides: &[usize],
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    PyArray1::from_vec(py, values).reshape(sides)
}

/// A new array for NumPy's `__array__(dtype, copy)`.
///
/// # Errors
///
/// `ValueError` if no copy is allowed: the elements do not exist as an array.
pub(crate) fn converted<'py>(
    array: Bound<'py, PyAny>,
    dtype: Option<Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    if copy == Some(false) {
        return Err(PyValueError::new_err("an array of packed trits is always a copy"));
    }
    match dtype {
        Some(dtype) => array.call_method1("astype", (dtype,)),
        None => Ok(array),
    }
}

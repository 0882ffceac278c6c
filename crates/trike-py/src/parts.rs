//! The buffers and scales of a trit tensor as arrays.

use numpy::PyArray1;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};
use trike::trit::{Granularity, ScaleValues, TritData};

use crate::{arrays::borrow, errors};

/// The shape of scales: (planes, rows, groups) without the axes that are one by definition. `sets` is the number of planes with
/// their own scales.
pub(crate) fn scale_shape(granularity: Granularity, sets: usize, rows: usize, cols: usize) -> Vec<usize> {
    let planes = (sets != 1).then_some(sets);
    let rest = match granularity {
        Granularity::Tensor if planes.is_none() => vec![1],
        Granularity::Tensor => Vec::new(),
        Granularity::Row => vec![rows],
        Granularity::Group(_) => vec![rows, granularity.groups_per_row(cols)],
    };
    planes.into_iter().chain(rest).collect()
}

/// Scales in the type in which they are stored.
pub(crate) fn scale_values(values: &[f32], what: &str, scale_type: &str) -> PyResult<ScaleValues> {
    match scale_type {
        "f32" => Ok(values.to_vec().into()),
        "f16" => match ScaleValues::exact(values) {
            ScaleValues::F32(_) => {
                Err(PyValueError::new_err(format!("{what}: a value is not a number of f16")))
            }
            exact => Ok(exact),
        },
        got => Err(errors::unknown("scale_type", got, &["f32", "f16"])),
    }
}

/// The buffers of a plane as new arrays.
pub(crate) fn write<'py>(py: Python<'py>, data: &TritData) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("encoding", data.encoding().name())?;
    match data {
        TritData::Planes { pos, neg } => {
            dict.set_item("pos", PyArray1::from_slice(py, pos))?;
            dict.set_item("neg", PyArray1::from_slice(py, neg))?;
        }
        TritData::TwoBit(words) => dict.set_item("words", PyArray1::from_slice(py, words))?,
        TritData::Base3(bytes) => dict.set_item("bytes", PyArray1::from_slice(py, bytes))?,
        TritData::Bitmap { nonzero, offsets, negative } => {
            dict.set_item("nonzero", PyArray1::from_slice(py, nonzero))?;
            dict.set_item("offsets", PyArray1::from_slice(py, offsets))?;
            dict.set_item("negative", PyArray1::from_slice(py, negative))?;
        }
        TritData::RowCompressed { offsets, entries } => {
            dict.set_item("offsets", PyArray1::from_slice(py, offsets))?;
            dict.set_item("entries", PyArray1::from_slice(py, entries))?;
        }
    }
    Ok(dict)
}

/// The buffers of a plane, from the arrays of [`write`].
pub(crate) fn read(dict: &Bound<'_, PyDict>) -> PyResult<TritData> {
    fn item<'py>(dict: &Bound<'py, PyDict>, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        let missing = || errors::unknown_key("buffers", "no such item", name);
        dict.get_item(name)?.ok_or_else(missing)
    }
    let words = |name| -> PyResult<Vec<u64>> {
        Ok(borrow::<u64>(&item(dict, name)?, name, &["words"])?.values()?.to_vec())
    };
    let bytes = |name| -> PyResult<Vec<u8>> {
        Ok(borrow::<u8>(&item(dict, name)?, name, &["bytes"])?.values()?.to_vec())
    };
    let offsets = || -> PyResult<Vec<u32>> {
        Ok(borrow::<u32>(&item(dict, "offsets")?, "offsets", &["rows + 1"])?.values()?.to_vec())
    };
    let encoding: String = item(dict, "encoding")?.extract()?;
    Ok(match encoding.parse().map_err(errors::value)? {
        trike::Encoding::Planes => TritData::Planes { pos: words("pos")?, neg: words("neg")? },
        trike::Encoding::TwoBit => TritData::TwoBit(words("words")?),
        trike::Encoding::Base3 => TritData::Base3(bytes("bytes")?),
        trike::Encoding::Bitmap => {
            TritData::Bitmap { nonzero: words("nonzero")?, offsets: offsets()?, negative: words("negative")? }
        }
        trike::Encoding::RowCompressed => {
            TritData::RowCompressed { offsets: offsets()?, entries: bytes("entries")? }
        }
    })
}

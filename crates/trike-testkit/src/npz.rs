//! Reader of `.npz` reference data written by numpy.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

/// One array of a `.npz` file, row-major.
#[derive(Clone, Debug)]
pub struct NpyArray {
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: NpyData,
}

/// Elements of an [`NpyArray`].
#[derive(Clone, Debug)]
pub enum NpyData {
    /// `<f4`.
    F32(Vec<f32>),
    /// `<i4`.
    I32(Vec<i32>),
    /// `<i8`.
    I64(Vec<i64>),
}

impl NpyArray {
    /// The elements converted to f32.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            NpyData::F32(v) => v.clone(),
            NpyData::I32(v) => v.iter().map(|&x| x as f32).collect(),
            NpyData::I64(v) => v.iter().map(|&x| x as f32).collect(),
        }
    }

    /// The elements as token ids.
    ///
    /// # Panics
    ///
    /// When the array holds floats or a negative number.
    pub fn to_ids(&self) -> Vec<u32> {
        match &self.data {
            NpyData::F32(_) => panic!("ids must be integers, got f32"),
            NpyData::I32(v) => v.iter().map(|&x| u32::try_from(x).expect("an id")).collect(),
            NpyData::I64(v) => v.iter().map(|&x| u32::try_from(x).expect("an id")).collect(),
        }
    }
}

/// All arrays of the file at `path`, by name.
///
/// # Panics
///
/// When the file is not a readable `.npz` of f32, i32 or i64 arrays in C order.
pub fn npz(path: &Path) -> BTreeMap<String, NpyArray> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut archive = zip::ZipArchive::new(file).expect("a zip archive");
    (0..archive.len())
        .map(|i| {
            let mut entry = archive.by_index(i).expect("an entry");
            let name = entry.name().expect("a UTF-8 name").trim_end_matches(".npy").to_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("entry bytes");
            (name, npy(&bytes))
        })
        .collect()
}

fn npy(bytes: &[u8]) -> NpyArray {
    assert_eq!(&bytes[..6], b"\x93NUMPY", "npy magic");
    let (header_len, start) = match bytes[6] {
        1 => (u16::from_le_bytes([bytes[8], bytes[9]]) as usize, 10),
        _ => (u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes")) as usize, 12),
    };
    let header = std::str::from_utf8(&bytes[start..start + header_len]).expect("an ASCII header");
    assert!(header.contains("'fortran_order': False"), "expected C order: {header}");
    let shape = header.split_once('(').and_then(|(_, rest)| rest.split_once(')')).expect("a shape").0;
    let shape = shape.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let body = &bytes[start + header_len..];
    let data = if header.contains("'<f4'") {
        NpyData::F32(words(body, f32::from_le_bytes))
    } else if header.contains("'<i4'") {
        NpyData::I32(words(body, i32::from_le_bytes))
    } else if header.contains("'<i8'") {
        NpyData::I64(words(body, i64::from_le_bytes))
    } else {
        panic!("unsupported dtype: {header}")
    };
    NpyArray { shape, data }
}

fn words<const N: usize, T>(body: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    body.chunks_exact(N).map(|c| read(c.try_into().expect("N bytes"))).collect()
}

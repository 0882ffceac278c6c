//! GGUF metadata: typed values with unique keys, in file order.

use std::collections::HashMap;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaValue {
    /// An unsigned integer of 8 bits.
    U8(u8),
    /// A signed integer of 8 bits.
    I8(i8),
    /// An unsigned integer of 16 bits.
    U16(u16),
    /// A signed integer of 16 bits.
    I16(i16),
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// A signed integer of 32 bits.
    I32(i32),
    /// A float of 32 bits.
    F32(f32),
    /// A bool.
    Bool(bool),
    /// A string.
    Str(String),
    /// An array.
    Array(MetaArray),
    /// An unsigned integer of 64 bits.
    U64(u64),
    /// A signed integer of 64 bits.
    I64(i64),
    /// A float of 64 bits.
    F64(f64),
}

/// A metadata array; all elements have the same type.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaArray {
    /// Unsigned integers of 8 bits.
    U8(Vec<u8>),
    /// Signed integers of 8 bits.
    I8(Vec<i8>),
    /// Unsigned integers of 16 bits.
    U16(Vec<u16>),
    /// Signed integers of 16 bits.
    I16(Vec<i16>),
    /// Unsigned integers of 32 bits.
    U32(Vec<u32>),
    /// Signed integers of 32 bits.
    I32(Vec<i32>),
    /// Floats of 32 bits.
    F32(Vec<f32>),
    /// Bools.
    Bool(Vec<bool>),
    /// Strings.
    Str(StringArray),
    /// Arrays.
    Array(Vec<MetaArray>),
    /// Unsigned integers of 64 bits.
    U64(Vec<u64>),
    /// Signed integers of 64 bits.
    I64(Vec<i64>),
    /// Floats of 64 bits.
    F64(Vec<f64>),
}

impl MetaValue {
    /// The number, if this is an integer of any width that fits in `i64`.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => v.try_into().ok(),
            Self::I64(v) => Some(v),
            _ => None,
        }
    }

    /// The number, if this is an integer of any width from 0 to `u32::MAX`.
    pub fn as_u32(&self) -> Option<u32> {
        self.as_i64().and_then(|v| v.try_into().ok())
    }

    /// The number, if this is a float; an f64 is rounded.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Self::F32(v) => Some(v),
            Self::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// The bool, if this is one.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The string, if this is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(v) => Some(v),
            _ => None,
        }
    }

    /// The array, if this is one.
    pub fn as_array(&self) -> Option<&MetaArray> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }

    /// The name of the type with the value: for a string its start, for an array the number of elements.
    pub fn describe(&self) -> String {
        match self {
            Self::U8(v) => format!("u8 {v}"),
            Self::I8(v) => format!("i8 {v}"),
            Self::U16(v) => format!("u16 {v}"),
            Self::I16(v) => format!("i16 {v}"),
            Self::U32(v) => format!("u32 {v}"),
            Self::I32(v) => format!("i32 {v}"),
            Self::F32(v) => format!("f32 {v}"),
            Self::Bool(v) => format!("bool {v}"),
            Self::U64(v) => format!("u64 {v}"),
            Self::I64(v) => format!("i64 {v}"),
            Self::F64(v) => format!("f64 {v}"),
            Self::Str(text) => format!("string {:?}", text.chars().take(40).collect::<String>()),
            Self::Array(a) => format!("array of {} {}", a.len(), a.element_name()),
        }
    }

    /// The GGUF id of this type.
    pub(crate) fn type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Str(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    /// Appends the encoded value, without its type id.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(v) => out.push(*v),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push((*v).into()),
            Self::Str(v) => put_str(v, out),
            Self::Array(v) => v.put(out),
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
        }
    }
}

impl MetaArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Str(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn element_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::Str(_) => "string",
            Self::Array(_) => "array",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        macro_rules! elements {
            ($id:literal, $values:expr) => {{
                out.extend(u32::to_le_bytes($id));
                out.extend((self.len() as u64).to_le_bytes());
                $values.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }};
        }
        match self {
            Self::U8(v) => elements!(0, v),
            Self::I8(v) => elements!(1, v),
            Self::U16(v) => elements!(2, v),
            Self::I16(v) => elements!(3, v),
            Self::U32(v) => elements!(4, v),
            Self::I32(v) => elements!(5, v),
            Self::F32(v) => elements!(6, v),
            Self::Bool(v) => elements!(7, v.iter().map(|&b| u8::from(b)).collect::<Vec<_>>()),
            Self::U64(v) => elements!(10, v),
            Self::I64(v) => elements!(11, v),
            Self::F64(v) => elements!(12, v),
            Self::Str(v) => {
                out.extend(8u32.to_le_bytes());
                out.extend((v.len() as u64).to_le_bytes());
                (0..v.len()).filter_map(|i| v.get_bytes(i)).for_each(|s| put_bytes(s, out));
            }
            Self::Array(v) => {
                out.extend(9u32.to_le_bytes());
                out.extend((v.len() as u64).to_le_bytes());
                v.iter().for_each(|a| a.put(out));
            }
        }
    }
}

pub(crate) fn put_str(text: &str, out: &mut Vec<u8>) {
    put_bytes(text.as_bytes(), out);
}

fn put_bytes(text: &[u8], out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

macro_rules! from {
    ($($variant:ident: $t:ty;)*) => {$(
        impl From<$t> for MetaValue {
            fn from(v: $t) -> Self {
                Self::$variant(v)
            }
        }

        impl From<Vec<$t>> for MetaValue {
            fn from(v: Vec<$t>) -> Self {
                Self::Array(MetaArray::$variant(v))
            }
        }
    )*};
}

from! { U8: u8; I8: i8; U16: u16; I16: i16; U32: u32; I32: i32; F32: f32; Bool: bool; U64: u64; I64: i64; F64: f64; }

impl From<&str> for MetaValue {
    fn from(v: &str) -> Self {
        Self::Str(v.to_owned())
    }
}

impl From<String> for MetaValue {
    fn from(v: String) -> Self {
        Self::Str(v)
    }
}

impl From<StringArray> for MetaValue {
    fn from(v: StringArray) -> Self {
        Self::Array(MetaArray::Str(v))
    }
}

/// An array of strings in two buffers: a vocabulary has hundreds of thousands of strings.
///
/// Strings of a file need not be UTF-8: vocabularies exist with tokens that are parts of characters.
///
/// ```
/// let words: trike_format::StringArray = ["a", "", "bc"].into_iter().collect();
/// assert_eq!((words.len(), words.get(2), words.get(3)), (3, Some("bc"), None));
/// assert_eq!(words.get_bytes(2), Some(&b"bc"[..]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringArray {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl StringArray {
    pub(crate) fn with_capacity(strings: usize, bytes: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), ends: Vec::with_capacity(strings) }
    }

    /// Appends a string, which need not be UTF-8.
    pub fn push(&mut self, text: impl AsRef<[u8]>) {
        self.text.extend_from_slice(text.as_ref());
        self.ends.push(self.text.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `i`; `None` if out of range or not UTF-8.
    pub fn get(&self, i: usize) -> Option<&str> {
        std::str::from_utf8(self.get_bytes(i)?).ok()
    }

    /// The bytes of string `i`; `None` if out of range.
    pub fn get_bytes(&self, i: usize) -> Option<&[u8]> {
        let start = if i == 0 { 0 } else { *self.ends.get(i - 1)? };
        self.text.get(start..*self.ends.get(i)?)
    }

    /// The strings in order; one that is not UTF-8 is empty.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut array = Self::default();
        strings.into_iter().for_each(|s| array.push(s.as_ref().as_bytes()));
        array
    }
}

/// The metadata of a file: values with unique keys, in file order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, MetaValue)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &MetaValue)> + '_ {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a value; returns `false` and changes nothing if the key exists.
    pub(crate) fn insert(&mut self, key: String, value: MetaValue) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }
}

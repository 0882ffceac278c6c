//! Number formats of the KV cache, layer by layer.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use crate::{Bounds, KvPrecision, OptionError, SpecError};

/// Number formats of the KV cache of each layer: a base format, and exceptions for single layers.
///
/// The text form is the base precision, followed by exceptions with their layers, counted from 0: `int4,int8:0-1+5` is int8 in
/// layers 0, 1 and 5 and int4 in all others. A single precision is `int8`.
///
/// ```
/// use trike_core::{KvPrecision, KvPrecisions};
///
/// let mixed: KvPrecisions = "int4,int8:0-1+5".parse()?;
/// assert_eq!([0, 2, 5].map(|layer| mixed.of_layer(layer).name()), ["int8", "int4", "int8"]);
/// assert_eq!(mixed.to_string(), "int4,int8:0-1+5");
/// // Three layers of int8 and three of int4, one head of 128.
/// assert_eq!(mixed.bytes_per_position(0..6, 128), 3 * 264 + 3 * 136);
///
/// assert_eq!("int8".parse::<KvPrecisions>()?, KvPrecision::Int8);
/// assert!("int4,int8".parse::<KvPrecisions>().is_err());
/// # Ok::<(), trike_core::InvalidKvPrecisions>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvPrecisions {
    /// The precision of the layers without an exception.
    base: KvPrecision,
    /// A three-bit code per layer, one bit in each element: 0 = `base`, otherwise the index in [`KvPrecision::ALL`] plus 1, which
    /// is never the index of `base`.
    own: [u128; 3],
}

impl KvPrecisions {
    /// Maximum number of layers of a decoder whose layers differ in precision.
    pub const MAX_LAYERS: usize = u128::BITS as usize;
    /// Bytes of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 1 + 3 * size_of::<u128>();

    /// The precision of a layer.
    #[must_use]
    pub fn of_layer(self, layer: usize) -> KvPrecision {
        let number = self.number(layer);
        number.checked_sub(1).and_then(|index| KvPrecision::ALL.get(index)).copied().unwrap_or(self.base)
    }

    /// The precision of the layers without an exception.
    #[must_use]
    pub const fn base(self) -> KvPrecision {
        self.base
    }

    /// Whether all layers have the same precision.
    #[must_use]
    pub fn is_uniform(self) -> bool {
        self.named() == 0
    }

    /// Sets the precision of a layer.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`] for a layer from [`MAX_LAYERS`](Self::MAX_LAYERS) on.
    pub fn with_layer(mut self, layer: usize, precision: KvPrecision) -> Result<Self, OptionError> {
        OptionError::check("layer", Bounds::at_least(0usize).at_most(Self::MAX_LAYERS - 1), layer)?;
        let number = if precision == self.base { 0 } else { 1 + index(precision) };
        for (bit, own) in self.own.iter_mut().enumerate() {
            *own = *own & !(1 << layer) | (number as u128 >> bit & 1) << layer;
        }
        Ok(self)
    }

    /// The precisions of a decoder's layers, in their order; most layers have the base precision of the result.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`] for more than [`MAX_LAYERS`](Self::MAX_LAYERS) layers that are not all the same.
    ///
    /// ```
    /// use trike_core::{KvPrecision::{Int4, Int8}, KvPrecisions};
    ///
    /// assert_eq!(KvPrecisions::of_layers(&[Int8, Int4, Int4])?.to_string(), "int4,int8:0");
    /// assert_eq!(KvPrecisions::of_layers(&[Int4; 200])?, Int4);
    /// assert!(KvPrecisions::of_layers(&[[Int4; 100], [Int8; 100]].concat()).is_err());
    /// # Ok::<(), trike_core::OptionError>(())
    /// ```
    pub fn of_layers(layers: &[KvPrecision]) -> Result<Self, OptionError> {
        let count = |precision: &KvPrecision| layers.iter().filter(|own| *own == precision).count();
        let base = KvPrecision::ALL.into_iter().max_by_key(count).unwrap_or(KvPrecision::F32);
        let others = layers.iter().enumerate().filter(|(_, own)| **own != base);
        if others.clone().next().is_some() {
            let bounds = Bounds::at_least(1usize).at_most(Self::MAX_LAYERS);
            OptionError::check("layers of several precisions", bounds, layers.len())?;
        }
        others.into_iter().try_fold(Self::from(base), |all, (layer, own)| all.with_layer(layer, *own))
    }

    /// Checks that these precisions are valid for a decoder of `layers` layers.
    ///
    /// # Errors
    ///
    /// [`SpecError`] for a layer that the decoder does not have, and for more than [`MAX_LAYERS`](Self::MAX_LAYERS) layers unless all are
    /// the same.
    pub fn check(self, layers: usize) -> Result<(), SpecError> {
        if self.is_uniform() {
            return Ok(());
        }
        let fail = |rule, got: String| Err(SpecError { field: "precision of keys and values", rule, got });
        let last = self.named().ilog2() as usize;
        if layers > Self::MAX_LAYERS {
            return fail("must be the same in all layers of a decoder of more than 128", self.to_string());
        }
        if last >= layers {
            return fail("must be given for layers of the decoder only", format!("layer {last} of {layers}"));
        }
        Ok(())
    }

    /// Bytes of the keys and values of one head at one position, with their scales, in a range of layers.
    #[must_use]
    pub fn bytes_per_position(self, layers: std::ops::Range<usize>, head_dim: usize) -> u64 {
        let of_layer = |layer| self.of_layer(layer).bytes_per_position(head_dim) as u64;
        layers.map(of_layer).fold(0, u64::saturating_add)
    }

    /// A fixed-size encoding for messages; [`from_bytes`](Self::from_bytes) decodes it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [index(self.base) as u8; Self::BYTES];
        for (own, bytes) in self.own.iter().zip(bytes[1..].as_chunks_mut::<16>().0) {
            *bytes = own.to_le_bytes();
        }
        bytes
    }

    /// Decodes [`to_bytes`](Self::to_bytes); `None` for invalid bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let base = *KvPrecision::ALL.get(usize::from(bytes[0]))?;
        let mut own = [0; 3];
        for (own, bytes) in own.iter_mut().zip(bytes[1..].as_chunks::<16>().0) {
            *own = u128::from_le_bytes(*bytes);
        }
        let all = Self { base, own };
        let valid = |layer| {
            let number = all.number(layer);
            number <= KvPrecision::ALL.len() && number != 1 + index(base)
        };
        (0..Self::MAX_LAYERS).all(valid).then_some(all)
    }

    /// The code of a layer in [`own`](Self::own).
    fn number(self, layer: usize) -> usize {
        let bit = |own: u128| if layer < Self::MAX_LAYERS { (own >> layer & 1) as usize } else { 0 };
        let [low, middle, high] = self.own.map(bit);
        low | middle << 1 | high << 2
    }

    /// The layers with an exception, as a bit mask.
    fn named(self) -> u128 {
        self.own.iter().fold(0, |all, own| all | own)
    }

    /// Ranges of consecutive layers with an exception of this precision.
    fn ranges(self, precision: KvPrecision) -> Vec<RangeInclusive<usize>> {
        let mut ranges: Vec<RangeInclusive<usize>> = Vec::new();
        for layer in (0..Self::MAX_LAYERS).filter(|&layer| self.number(layer) == 1 + index(precision)) {
            match ranges.last_mut() {
                Some(range) if range.end() + 1 == layer => *range = *range.start()..=layer,
                _ => ranges.push(layer..=layer),
            }
        }
        ranges
    }
}

/// The index of a precision in [`KvPrecision::ALL`].
fn index(precision: KvPrecision) -> usize {
    KvPrecision::ALL.iter().position(|one| *one == precision).unwrap_or(0)
}

impl From<KvPrecision> for KvPrecisions {
    fn from(base: KvPrecision) -> Self {
        Self { base, own: [0; 3] }
    }
}

/// Lets a setter that takes `impl Into<Option<KvPrecisions>>` also take one precision.
impl From<KvPrecision> for Option<KvPrecisions> {
    fn from(base: KvPrecision) -> Self {
        Some(base.into())
    }
}

impl PartialEq<KvPrecision> for KvPrecisions {
    fn eq(&self, other: &KvPrecision) -> bool {
        *self == Self::from(*other)
    }
}

impl fmt::Display for KvPrecisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.name())?;
        for precision in KvPrecision::ALL {
            let ranges = self.ranges(precision);
            for (at, range) in ranges.iter().enumerate() {
                match at {
                    0 => write!(f, ",{}:", precision.name())?,
                    _ => f.write_str("+")?,
                }
                write!(f, "{}", range.start())?;
                if range.end() > range.start() {
                    write!(f, "-{}", range.end())?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for KvPrecisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvPrecisions({self})")
    }
}

/// Text that is not the text form of [`KvPrecisions`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{got}`: expected {expected}")]
pub struct InvalidKvPrecisions {
    /// The invalid part.
    pub got: String,
    /// The expected text.
    pub expected: &'static str,
}

impl FromStr for KvPrecisions {
    type Err = InvalidKvPrecisions;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |got: &str, expected| InvalidKvPrecisions { got: got.to_owned(), expected };
        let named = |name: &str| {
            KvPrecision::named(name).ok_or_else(|| wrong(name, "f32, f16, int8, int8-int4 or int4"))
        };
        let mut parts = text.split(',');
        let base = named(parts.next().unwrap_or_default())?;
        let mut all = Self::from(base);
        let mut given = 0u128;
        for part in parts {
            let Some((name, layers)) = part.split_once(':') else {
                return Err(wrong(part, "a precision with its layers, such as int8:0-1+5"));
            };
            let precision = named(name)?;
            for range in layers.split('+') {
                let layer = |text: &str| -> Option<usize> {
                    // Digits only: `parse` would accept a sign.
                    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                    text.parse().ok().filter(|&layer| digits && layer < Self::MAX_LAYERS)
                };
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let range = match (layer(first), layer(last)) {
                    (Some(first), Some(last)) if first <= last => first..=last,
                    _ => return Err(wrong(range, "a layer or a range of layers from 0 to 127, such as 0-1")),
                };
                for layer in range {
                    if given >> layer & 1 == 1 {
                        return Err(wrong(&layer.to_string(), "each layer once"));
                    }
                    given |= 1 << layer;
                    // Checked above, so this cannot fail.
                    all = all.with_layer(layer, precision).unwrap_or(all);
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KvPrecision::{F16, F32, Int4, Int8, Int8Int4};

    #[test]
    fn text_forms_are_read_back() {
        for (text, shown) in [
            ("int8-int4", "int8-int4"),
            ("int4,int8:0", "int4,int8:0"),
            ("int4,int8:5+0-1", "int4,int8:0-1+5"),
            ("int8-int4,f16:3,f32:127", "int8-int4,f32:127,f16:3"),
            ("int4,int8:0+1+2,f16:4", "int4,f16:4,int8:0-2"),
            // The base precision is not listed as an exception.
            ("int4,int4:0-7,int8:9", "int4,int8:9"),
        ] {
            let read: KvPrecisions = text.parse().expect(text);
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse(), Ok(read));
            assert_eq!(KvPrecisions::from_bytes(read.to_bytes()), Some(read));
            let layers: Vec<_> = (0..KvPrecisions::MAX_LAYERS).map(|layer| read.of_layer(layer)).collect();
            assert_eq!(KvPrecisions::of_layers(&layers), Ok(read));
            assert_eq!(read.is_uniform(), !shown.contains(','));
        }
        for (text, part) in [
            ("", ""),
            ("int2", "int2"),
            ("auto", "auto"),
            ("int4,", ""),
            ("int4,int8", "int8"),
            ("int4,int2:1", "int2"),
            ("int4,int8:", ""),
            ("int4,int8:1-", "1-"),
            ("int4,int8:3-2", "3-2"),
            ("int4,int8:+3", ""),
            ("int4,int8:128", "128"),
            ("int4,int8:0-128", "0-128"),
            ("int4,int8:99999999999999999999", "99999999999999999999"),
            ("int4,int8:0,f16:0", "0"),
            ("int4,int8:1-2+2", "2"),
            ("int4, int8:0", " int8"),
        ] {
            assert_eq!(text.parse::<KvPrecisions>().expect_err(text).got, part, "{text}");
        }
    }

    #[test]
    fn a_layer_can_be_set_again() {
        let all = KvPrecision::ALL;
        for base in all {
            for (first, second) in all.into_iter().flat_map(|first| all.map(|second| (first, second))) {
                let mixed = KvPrecisions::from(base).with_layer(7, first).unwrap();
                let mixed = mixed.with_layer(127, first).unwrap().with_layer(7, second).unwrap();
                assert_eq!([6, 7, 127, 128].map(|layer| mixed.of_layer(layer)), [base, second, first, base]);
            }
        }
        let uniform = KvPrecisions::from(Int4);
        assert_eq!(uniform.with_layer(3, Int8).unwrap().with_layer(3, Int4), Ok(uniform));
        assert!(uniform == Int4 && uniform.with_layer(128, Int8).is_err());
    }

    #[test]
    fn decoders_are_checked() {
        let mixed: KvPrecisions = "int4,int8:5".parse().unwrap();
        assert_eq!([6, 128].map(|layers| mixed.check(layers)), [Ok(()), Ok(())]);
        assert_eq!(
            mixed.check(5).unwrap_err().to_string(),
            "precision of keys and values must be given for layers of the decoder only, got layer 5 of 5"
        );
        assert_eq!(
            mixed.check(129).unwrap_err().to_string(),
            "precision of keys and values must be the same in all layers of a decoder of more than 128, got int4,int8:5"
        );
        assert_eq!(KvPrecisions::from(Int4).check(129), Ok(()));
        assert_eq!(mixed.bytes_per_position(4..7, 8), (8 + 8) + (12 + 12) + (8 + 8));
        assert_eq!(KvPrecisions::from(F16).bytes_per_position(100..200, 8), 100 * 32);
    }

    #[test]
    fn bytes_of_other_forms_are_refused() {
        let bytes = KvPrecisions::of_layers(&[F32, F32, Int8Int4]).unwrap().to_bytes();
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            KvPrecisions::from_bytes(bytes)
        };
        assert!(with(0, 0).is_some());
        // A sixth precision is invalid, both as the base and for layer 1; so is an exception equal to the base.
        assert_eq!(with(0, 5), None);
        assert_eq!(with(0, 4), None);
        let mut sixth = bytes;
        (sixth[17], sixth[33]) = (2, 6);
        assert_eq!(KvPrecisions::from_bytes(sixth), None);
    }
}

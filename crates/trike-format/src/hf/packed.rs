//! Trike's packed tensors inside a safetensors file: their descriptions in `quantization_config` and their parts.
//!
//! The layout is described in `docs/src/formats.md`.

use std::path::Path;

use safetensors::Dtype;
use serde_json::{Map, Value, json};
use trike_core::{Int8Tiles, LINE_BYTES, TILE_ROWS, TileLayout, Tiles, TritTiles};
use trike_trit::{Coupling, Encoding, Granularity, Hadamard, MAX_DEPTH, ScaleValues};

use super::container::{Container, Slot};
use crate::{
    FormatError, StoredType, Tensor,
    error::{Place, unsupported},
};

/// Version of a description without rotated tensors. Readers of version 1 do not support rotations and reject version 2.
pub(crate) const VERSION: u64 = 1;
/// Version of a description with rotated tensors.
pub(crate) const ROTATED: u64 = 2;
/// Version of a description with tiled tensors.
pub(crate) const TILED: u64 = 3;

/// The description of a packed tensor in `quantization_config`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packed {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(super) form: Form,
    pub(super) scales: Dtype,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    Int8 {
        group: usize,
        /// Whether codes and scales are one stream of tiles.
        tiled: bool,
    },
    Trits {
        encoding: Encoding,
        /// The line layout of tiles, if the trits are in tiles; they still load in `encoding`.
        tiles: Option<TileLayout>,
        depth: usize,
        coupling: Coupling,
        granularity: Granularity,
        means: Option<Dtype>,
        rotation: Option<Hadamard>,
    },
}

/// A part of a packed tensor: name suffix, type, and shape (`None` if it depends on the trits).
pub(super) type Part = (&'static str, Dtype, Option<Vec<usize>>);

impl Packed {
    /// Reads one entry of `quantization_config.tensors`.
    pub(crate) fn parse(place: Place<'_>, value: &Value) -> Result<Self, FormatError> {
        let fields = Fields { place, object: value.as_object() };
        let (rows, cols) = fields.shape()?;
        let scales = fields.dtype("scale_dtype")?;
        let encoding = fields.text("encoding")?;
        let form = if encoding == "int8" {
            let group = fields.number("group")?;
            if group == 0 || group > cols {
                return Err(place.layout(format!("a group of 1 to {cols}"), group.to_string()));
            }
            let tiled = match fields.get("tiles") {
                Value::Null => false,
                _ => fields.one_of("tiles", &[("int8", true)])?,
            };
            Form::Int8 { group, tiled }
        } else {
            let depth = fields.number("depth")?;
            if !(1..=MAX_DEPTH).contains(&depth) {
                return Err(place.layout(format!("1 to {MAX_DEPTH} planes"), depth.to_string()));
            }
            let means = !fields.get("mean_dtype").is_null();
            let rotation = match fields.get("rotation") {
                Value::Null => None,
                _ => Some(fields.rotation(cols)?),
            };
            let tiles = match fields.get("tiles") {
                Value::Null => None,
                _ => Some(fields.one_of("tiles", &TILE_LAYOUTS)?),
            };
            Form::Trits {
                rotation,
                encoding: fields.parse("encoding")?,
                tiles,
                depth,
                coupling: fields.parse("coupling")?,
                granularity: fields.parse("granularity")?,
                means: if means { Some(fields.dtype("mean_dtype")?) } else { None },
            }
        };
        Ok(Self { rows, cols, form, scales })
    }

    /// The description of a tensor; `None` for a dense tensor.
    pub(crate) fn of(tensor: &Tensor) -> Option<Self> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        match tensor {
            Tensor::Dense(_) => None,
            Tensor::Int8(t) => {
                let form = Form::Int8 { group: t.group(), tiled: false };
                Some(Self { rows, cols, form, scales: dtype_of(t.scales()) })
            }
            Tensor::Ternary(t) => {
                let form = Form::Trits {
                    encoding: t.encoding(),
                    tiles: None,
                    depth: t.depth(),
                    coupling: t.coupling(),
                    granularity: t.scales().granularity(),
                    means: t.scales().means().map(dtype_of),
                    rotation: t.rotation(),
                };
                Some(Self { rows, cols, form, scales: dtype_of(t.scales().values()) })
            }
        }
    }

    /// The description of a tensor in tiles, trits in lines of `layout`; `None` for a dense tensor.
    pub(crate) fn tiled(tensor: &Tensor, layout: TileLayout) -> Option<Self> {
        let mut packed = Self::of(tensor)?;
        match &mut packed.form {
            Form::Int8 { tiled, .. } => *tiled = true,
            Form::Trits { tiles, .. } => *tiles = Some(layout),
        }
        Some(packed)
    }

    /// The description of another tensor in the same order of weights; `None` for a dense tensor.
    pub(crate) fn like(&self, tensor: &Tensor) -> Option<Self> {
        match self.form {
            Form::Int8 { tiled: true, .. } => Self::tiled(tensor, TileLayout::TwoBit),
            Form::Trits { tiles: Some(layout), .. } => Self::tiled(tensor, layout),
            _ => Self::of(tensor),
        }
    }

    /// Whether the weights are in tiles.
    pub(crate) fn is_tiled(&self) -> bool {
        matches!(self.form, Form::Int8 { tiled: true, .. } | Form::Trits { tiles: Some(_), .. })
    }

    /// The tiles, with the given bytes of each part; `None` if the tensor is not in tiles or a part is missing.
    pub(crate) fn tiles<B>(&self, mut part: impl FnMut(&str) -> Option<B>) -> Option<Tiles<B>> {
        let (rows, cols, half_scales) = (self.rows, self.cols, self.scales == Dtype::F16);
        match self.form {
            Form::Int8 { group, tiled: true } => {
                Some(Tiles::Int8(Int8Tiles { rows, cols, group, half_scales, lines: part(".tiles")? }))
            }
            Form::Trits { tiles: Some(layout), depth, coupling, granularity, means, rotation, .. } => {
                let means = match means {
                    Some(dtype) => Some((part(".means")?, dtype == Dtype::F16)),
                    None => None,
                };
                Some(Tiles::Trits(TritTiles {
                    rows,
                    cols,
                    layout,
                    depth,
                    coupling,
                    granularity,
                    rotation,
                    codes: part(".tiles")?,
                    scales: part(".scales")?,
                    half_scales,
                    means,
                }))
            }
            _ => None,
        }
    }

    /// The entry of `quantization_config.tensors`.
    pub(crate) fn to_json(&self) -> Value {
        let mut entry = json!({ "shape": [self.rows, self.cols], "scale_dtype": self.scales.to_string() });
        match &self.form {
            Form::Int8 { group, tiled } => {
                entry["encoding"] = "int8".into();
                entry["group"] = (*group).into();
                if *tiled {
                    entry["tiles"] = "int8".into();
                }
            }
            Form::Trits { encoding, tiles, depth, coupling, granularity, means, rotation } => {
                if let Some((name, _)) =
                    TILE_LAYOUTS.iter().find(|(_, layout)| Some(layout) == tiles.as_ref())
                {
                    entry["tiles"] = (*name).into();
                }
                if let Some(rotation) = rotation {
                    entry["rotation"] = rotation.block().into();
                }
                entry["encoding"] = encoding.name().into();
                entry["depth"] = (*depth).into();
                entry["coupling"] = coupling.name().into();
                entry["granularity"] = granularity.to_string().into();
                if let Some(means) = means {
                    entry["mean_dtype"] = means.to_string().into();
                }
            }
        }
        entry
    }

    pub(crate) fn kind(&self) -> StoredType {
        match self.form {
            Form::Int8 { group, .. } => StoredType::Int8 { group },
            Form::Trits { encoding, depth, coupling, .. } => StoredType::Trits { encoding, depth, coupling },
        }
    }

    /// The stored parts; `None` if a size overflows.
    pub(crate) fn parts(&self) -> Option<Vec<Part>> {
        let (rows, cols) = (self.rows, self.cols);
        if let Some(tiles) = self.tiles(|_| Some(())) {
            return self.tiled_parts(&tiles);
        }
        match &self.form {
            Form::Int8 { group, .. } => Some(vec![
                (".int8", Dtype::I8, Some(vec![rows, cols])),
                (".scales", self.scales, Some(vec![rows, cols.div_ceil(*group)])),
            ]),
            Form::Trits { encoding, depth, coupling, granularity, means, rotation, .. } => {
                let depth = *depth;
                // Another name, so that a reader that looks only at the part names does not mistake them for unrotated trits.
                let name = if rotation.is_some() { ".rotated" } else { ".trits" };
                let trits = |shape: Vec<usize>| (name, Dtype::U8, Some(shape));
                let offsets = (".offsets", Dtype::U32, Some(vec![depth, rows.checked_add(1)?]));
                let bit_bytes = 8 * cols.div_ceil(64);
                let mut parts = match encoding {
                    Encoding::Planes => vec![trits(vec![depth, 2, rows, bit_bytes])],
                    Encoding::TwoBit => vec![trits(vec![depth, rows, 8 * cols.div_ceil(32)])],
                    Encoding::Base3 => vec![trits(vec![depth, rows, cols.div_ceil(5)])],
                    Encoding::Bitmap => {
                        vec![trits(vec![depth, rows, bit_bytes]), offsets, (".signs", Dtype::U8, None)]
                    }
                    Encoding::RowCompressed => vec![(name, Dtype::U8, None), offsets],
                };
                if rotation.is_some() {
                    parts.push((".rotation", Dtype::U32, Some(vec![1])));
                }
                let set = match granularity {
                    Granularity::Tensor => vec![],
                    Granularity::Row => vec![rows],
                    Granularity::Group(_) => vec![rows, granularity.groups_per_row(cols)],
                };
                let sets = if *coupling == Coupling::Free { depth } else { 1 };
                parts.push((".scales", self.scales, Some([vec![sets], set.clone()].concat())));
                if let Some(means) = means {
                    // One axis of length 1, because a scalar has no axes in safetensors.
                    parts.push((".means", *means, Some(if set.is_empty() { vec![1] } else { set })));
                }
                Some(parts)
            }
        }
    }
}

impl Packed {
    /// The stored parts of a tensor in tiles: a line of 64 bytes is a row of `.tiles`.
    fn tiled_parts(&self, tiles: &Tiles<()>) -> Option<Vec<Part>> {
        let lines = |bytes: usize| (".tiles", Dtype::U8, Some(vec![bytes / LINE_BYTES, LINE_BYTES]));
        match tiles {
            Tiles::Int8(tiles) => Some(vec![lines(tiles.bytes()?)]),
            Tiles::Trits(tiles) => {
                let [codes, ..] = tiles.part_bytes()?;
                let groups = tiles.granularity.groups_per_row(self.cols);
                let numbers = |sets: usize| match tiles.granularity {
                    Granularity::Tensor => vec![sets],
                    Granularity::Row | Granularity::Group(_) => {
                        vec![self.rows.div_ceil(TILE_ROWS), sets, groups, TILE_ROWS]
                    }
                };
                let mut parts = vec![lines(codes), (".scales", self.scales, Some(numbers(tiles.sets())))];
                if let Form::Trits { means: Some(means), .. } = &self.form {
                    parts.push((".means", *means, Some(numbers(1))));
                }
                Some(parts)
            }
        }
    }
}

/// Names of line layouts.
const TILE_LAYOUTS: [(&str, TileLayout); 2] = [("two-bit", TileLayout::TwoBit), ("base3", TileLayout::Base3)];

fn dtype_of(values: &ScaleValues) -> Dtype {
    match values {
        ScaleValues::F16(_) => Dtype::F16,
        ScaleValues::F32(_) => Dtype::F32,
    }
}

pub(super) fn missing_part(place: Place<'_>, suffix: &str) -> FormatError {
    place.layout(format!("a part `{}{suffix}`", place.tensor), "no such tensor in the file")
}

/// Finds the parts of a packed tensor and checks their types and shapes, using only the headers.
pub(crate) fn check_parts(
    place: Place<'_>,
    packed: &Packed,
    find: impl Fn(&str) -> Option<(usize, Slot)>,
) -> Result<Vec<(&'static str, usize, Slot)>, FormatError> {
    let parts = packed.parts().ok_or_else(|| place.layout("an addressable tensor", "sizes that overflow"))?;
    let mut found = Vec::with_capacity(parts.len());
    for (suffix, dtype, shape) in parts {
        let (file, slot) = find(suffix).ok_or_else(|| missing_part(place, suffix))?;
        let fits = match &shape {
            Some(shape) => slot.shape == *shape,
            None => slot.shape.len() == 1,
        };
        if slot.dtype != dtype || !fits {
            let shape = shape.map_or_else(|| "of one axis".to_owned(), |s| format!("{s:?}"));
            let expected = format!("`{suffix}` as {dtype} {shape}");
            return Err(place.layout(expected, format!("{} {:?}", slot.dtype, slot.shape)));
        }
        found.push((suffix, file, slot));
    }
    Ok(found)
}

/// The fields of an entry, with errors that name the tensor.
struct Fields<'a> {
    place: Place<'a>,
    object: Option<&'a Map<String, Value>>,
}

impl Fields<'_> {
    fn get(&self, key: &str) -> &Value {
        self.object.and_then(|o| o.get(key)).unwrap_or(&Value::Null)
    }

    fn wrong(&self, key: &str, expected: &str) -> FormatError {
        let expected = format!("`{key}` in quantization_config to be {expected}");
        self.place.layout(expected, self.get(key).to_string())
    }

    fn text(&self, key: &str) -> Result<&str, FormatError> {
        self.get(key).as_str().ok_or_else(|| self.wrong(key, "a string"))
    }

    fn number(&self, key: &str) -> Result<usize, FormatError> {
        let number = self.get(key).as_u64().and_then(|n| n.try_into().ok());
        number.ok_or_else(|| self.wrong(key, "a count"))
    }

    /// A name from a list; an unknown one may be from a newer version.
    fn one_of<T: Copy>(&self, key: &str, names: &[(&str, T)]) -> Result<T, FormatError> {
        let name = self.text(key)?;
        names.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
            let remedy = format!("expected {}: use a newer version of Trike", known.join(" or "));
            self.place.unsupported(format!("`{key}` {name:?}"), remedy)
        })
    }

    fn rotation(&self, cols: usize) -> Result<Hadamard, FormatError> {
        let block = self.number("rotation")?;
        let rotation = Hadamard::new(block).ok().filter(|_| cols.is_multiple_of(block));
        rotation
            .ok_or_else(|| self.wrong("rotation", "a power of two from 2 to 1024 that divides the columns"))
    }

    fn shape(&self) -> Result<(usize, usize), FormatError> {
        let wrong = || self.wrong("shape", "[rows, cols], each 1 to 4294967295");
        let side =
            |v: &Value| v.as_u64().filter(|n| (1..=u64::from(u32::MAX)).contains(n)).map(|n| n as usize);
        let shape: Option<Vec<usize>> =
            self.get("shape").as_array().ok_or_else(wrong)?.iter().map(side).collect();
        match shape.as_deref() {
            Some(&[rows, cols]) if trike_core::elements(&[rows, cols]).is_ok() => Ok((rows, cols)),
            _ => Err(wrong()),
        }
    }

    fn dtype(&self, key: &str) -> Result<Dtype, FormatError> {
        match self.text(key)? {
            "F16" => Ok(Dtype::F16),
            "F32" => Ok(Dtype::F32),
            _ => Err(self.wrong(key, "F16 or F32")),
        }
    }

    /// The name of an encoding, coupling or granularity; an unknown name may be from a newer version.
    fn parse<T: std::str::FromStr<Err = trike_trit::ParseKindError>>(
        &self,
        key: &str,
    ) -> Result<T, FormatError> {
        self.text(key)?.parse().map_err(|e: trike_trit::ParseKindError| {
            self.place.unsupported(format!("`{}`", e.got), format!("{e}: use a newer version of Trike"))
        })
    }
}

/// Reads Trike's `quantization_config`: the packed tensors by name.
pub(crate) fn descriptions(path: &Path, quantization: &Value) -> Result<Vec<(String, Packed)>, FormatError> {
    let version = quantization.get("version").unwrap_or(&Value::Null);
    if !version.as_u64().is_some_and(|v| (VERSION..=TILED).contains(&v)) {
        let name = format!("trike packing version {version}");
        return Err(unsupported(path, name, "use a newer version of Trike"));
    }
    let Some(tensors) = quantization.get("tensors").and_then(Value::as_object) else {
        return Err(FormatError::Header {
            path: path.to_owned(),
            what: "`quantization_config.tensors`".to_owned(),
            expected: "an object with one entry per packed tensor".to_owned(),
            got: "none".to_owned(),
        });
    };
    tensors
        .iter()
        .map(|(name, value)| Ok((name.clone(), Packed::parse(Place { path, tensor: name }, value)?)))
        .collect()
}

/// Finds a part by its full name in the containers of a directory.
pub(crate) fn find_slot(containers: &[Container], name: &str) -> Option<(usize, Slot)> {
    containers.iter().enumerate().find_map(|(i, c)| c.slot(name).map(|slot| (i, slot.clone())))
}

//! BitNet checkpoints as written by HuggingFace transformers.
//!
//! The layout is described in `docs/src/formats.md`.

use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::{Map, Value};
use trike_trit::{Coupling, Scales, TritData, TritTensor};

use super::{
    container::{Container, Slot},
    packed::find_slot,
};
use crate::{
    FormatError, Tensor,
    bytes::codes_at,
    error::{Place, unsupported},
};

/// Rows packed into one byte.
const ROWS_A_BYTE: usize = 4;
const WEIGHT: &str = ".weight";
const SCALE: &str = ".weight_scale";
/// All keys that transformers writes. An unknown key may require a step without which the weights are meaningless.
const KEYS: [&str; 6] = [
    "quant_method",
    "linear_class",
    "quantization_mode",
    "modules_to_not_convert",
    "use_rms_norm",
    "rms_norm_eps",
];

/// The `quantization_config` of a BitNet checkpoint.
#[derive(Debug)]
pub(crate) struct BitNet {
    /// Whether a weight is its trit divided by the stored scale instead of multiplied by it.
    inverse: bool,
    /// Whether the file contains master weights, which the layers ternarize themselves.
    pub(crate) online: bool,
    /// Modules whose linear layers are dense.
    ordinary: Vec<String>,
}

/// A packed weight: its name, and container and slot of its two parts.
pub(crate) struct Packing {
    pub(crate) name: String,
    pub(crate) scale_name: String,
    pub(crate) weight: (usize, Slot),
    pub(crate) scale: (usize, Slot),
}

impl BitNet {
    pub(crate) fn parse(path: &Path, quantization: &Value) -> Result<Self, FormatError> {
        let remedy = "use the model's variant with dense weights, or a GGUF file of it (TQ1_0, TQ2_0)";
        let empty = Map::new();
        let object = quantization.as_object().unwrap_or(&empty);
        if let Some((key, value)) =
            object.iter().find(|(key, v)| !KEYS.contains(&key.as_str()) && !v.is_null())
        {
            return Err(unsupported(path, format!("quantization_config.{key} {value}"), remedy));
        }
        // An extra norm with its own weights before every linear layer.
        if let Some(value) = object.get("use_rms_norm").filter(|v| !v.is_null() && **v != Value::Bool(false))
        {
            return Err(unsupported(path, format!("quantization_config.use_rms_norm {value}"), remedy));
        }
        // The defaults are those of transformers.
        let text = |key: &str, default| match object.get(key) {
            None | Some(Value::Null) => default,
            Some(value) => value.as_str().unwrap_or("(not a string)").to_owned(),
        };
        let class = text("linear_class", "bitlinear".to_owned());
        let mode = text("quantization_mode", "offline".to_owned());
        let (inverse, online) = match (class.as_str(), mode.as_str()) {
            ("bitlinear", "offline") => (true, false),
            ("autobitlinear", "offline") => (false, false),
            ("autobitlinear", "online") => (false, true),
            _ => {
                let name = format!("linear_class {class} with quantization_mode {mode}");
                return Err(unsupported(path, name, remedy));
            }
        };
        Ok(Self { inverse, online, ordinary: ordinary(path, object)? })
    }

    /// Whether the layer of this weight ternarizes it in every forward pass, judging by the name: every linear layer that is not
    /// excluded does, an embedding does not.
    pub(crate) fn is_online_ternary(&self, name: &str) -> bool {
        let module = name.strip_suffix(WEIGHT);
        let embedding = |module: &str| module.rsplit('.').next().is_some_and(|last| last.contains("embed"));
        self.online && module.is_some_and(|m| !self.is_ordinary(m) && !embedding(m))
    }

    fn is_ordinary(&self, module: &str) -> bool {
        self.ordinary.iter().any(|key| module.starts_with(key.as_str()) || module.ends_with(key.as_str()))
    }

    /// The packed weights of a directory, each with its scale.
    pub(crate) fn packings(&self, dir: &Path, containers: &[Container]) -> Result<Vec<Packing>, FormatError> {
        let mut found = Vec::new();
        let names = containers.iter().flat_map(|c| c.names().map(move |name| (c, name)));
        for (container, name) in names {
            let place = Place { path: container.path(), tensor: name };
            if let Some(module) = name.strip_suffix(WEIGHT) {
                let packed = container.slot(name).is_some_and(|slot| slot.dtype == Dtype::U8);
                if packed {
                    found.push(self.packing(place, dir, module, containers)?);
                }
            } else if let Some(module) = name.strip_suffix(SCALE).filter(|_| !self.online) {
                let weight = find_slot(containers, &format!("{module}{WEIGHT}"));
                let got = match weight {
                    Some((_, slot)) if slot.dtype == Dtype::U8 => continue,
                    Some((_, slot)) => format!("{} {:?}", slot.dtype, slot.shape),
                    None => "no such tensor in the file".to_owned(),
                };
                return Err(place.layout(format!("`{module}{WEIGHT}` as U8, four rows per byte"), got));
            }
        }
        Ok(found)
    }

    fn packing(
        &self,
        place: Place<'_>,
        dir: &Path,
        module: &str,
        containers: &[Container],
    ) -> Result<Packing, FormatError> {
        if self.online || self.is_ordinary(module) {
            let expected = if self.online {
                "master weights, since quantization_mode is online"
            } else {
                "dense weights, since modules_to_not_convert names the layer"
            };
            return Err(place.layout(expected, "packed weights (U8)"));
        }
        let find = |suffix: &str| {
            let name = format!("{module}{suffix}");
            let missing =
                || Place { path: dir, tensor: &name }.layout("the tensor", "no such tensor in the file");
            find_slot(containers, &name).ok_or_else(missing)
        };
        let (weight, scale) = (find(WEIGHT)?, find(SCALE)?);
        if shape(&weight.1).is_none() {
            let got = format!("shape {:?}", weight.1.shape);
            return Err(place.layout("[rows / 4, cols], each at least 1", got));
        }
        let slot = &scale.1;
        let float = matches!(slot.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        if !float || !matches!(slot.shape.as_slice(), [] | [1]) {
            let expected = format!("`{module}{SCALE}` as one F32, F16 or BF16");
            return Err(place.layout(expected, format!("{} {:?}", slot.dtype, slot.shape)));
        }
        Ok(Packing { name: place.tensor.to_owned(), scale_name: format!("{module}{SCALE}"), weight, scale })
    }

    /// Unpacks a weight found by [`packings`](Self::packings).
    pub(crate) fn load(
        &self,
        place: Place<'_>,
        slot: &Slot,
        weight: &[u8],
        scale: (Dtype, &[u8]),
    ) -> Result<Tensor, FormatError> {
        let Some((rows, cols)) = shape(slot) else {
            return Err(place.layout("[rows / 4, cols]", format!("shape {:?}", slot.shape)));
        };
        let stored = match scale {
            (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Dtype::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (dtype, bytes) => {
                return Err(place.layout("one scale", format!("{} bytes of {dtype}", bytes.len())));
            }
        };
        let value = if self.inverse { 1.0 / stored } else { stored };
        if !value.is_finite() || (self.inverse && !stored.is_finite()) {
            let expected =
                if self.inverse { "a finite divisor with a finite reciprocal" } else { "a finite factor" };
            return Err(place.values(format!("its weight_scale is {stored}: expected {expected}")));
        }
        let words = TritData::TwoBit(unpack(weight, cols));
        let tensor = TritTensor::new(rows, cols, vec![words], Coupling::Free, Scales::tensor(value));
        tensor.map(Tensor::Ternary).map_err(|e| place.trits(e))
    }
}

/// Rows and columns of a packed weight; `None` unless it is an addressable matrix.
pub(crate) fn shape(slot: &Slot) -> Option<(usize, usize)> {
    let &[packed, cols] = slot.shape.as_slice() else { return None };
    let rows = packed.checked_mul(ROWS_A_BYTE)?;
    trike_core::elements(&[rows, cols]).is_ok().then_some((rows, cols))
}

/// Unpacks two-bit codes: bits `2 i` and `2 i + 1` of byte row `r` belong to row `r + i * rows / 4`, so each shift yields a
/// quarter of the rows, in order.
fn unpack(packed: &[u8], cols: usize) -> Vec<u64> {
    let mut words = Vec::with_capacity(ROWS_A_BYTE * packed.len() / cols * cols.div_ceil(32));
    for shift in [0, 2, 4, 6] {
        for row in packed.chunks_exact(cols) {
            let (runs, tail) = row.as_chunks::<32>();
            words.extend(runs.iter().map(|run| codes_at(run, shift)));
            if !tail.is_empty() {
                // Padding with zero trits: code 1 at every shift.
                let mut run = [0b01_01_01_01; 32];
                run[..tail.len()].copy_from_slice(tail);
                words.push(codes_at(&run, shift));
            }
        }
    }
    words
}

/// The modules that stay dense, given by prefixes or suffixes of their paths; by default the LM head.
fn ordinary(path: &Path, object: &Map<String, Value>) -> Result<Vec<String>, FormatError> {
    const KEY: &str = "modules_to_not_convert";
    let list = match object.get(KEY) {
        None | Some(Value::Null) => return Ok(vec!["lm_head".to_owned()]),
        Some(list) => list,
    };
    let names: Option<Vec<String>> =
        list.as_array().and_then(|list| list.iter().map(|v| v.as_str().map(str::to_owned)).collect());
    let Some(names) = names else {
        return Err(FormatError::Header {
            path: path.to_owned(),
            what: format!("`quantization_config.{KEY}`"),
            expected: "a list of names".to_owned(),
            got: list.to_string(),
        });
    };
    // transformers interprets the names as regular expressions, which only differs for names with special characters.
    let plain =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c));
    match names.iter().find(|name| !plain(name)) {
        Some(name) => Err(unsupported(
            path,
            format!("the pattern {name:?} in {KEY}"),
            "name the modules without special characters",
        )),
        None => Ok(names),
    }
}

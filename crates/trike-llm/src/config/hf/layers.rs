//! What differs between the layers of a decoder: sliding windows, and layers without RoPE.

use trike_nn::LayerSet;

use super::super::{ROPE_INTERVAL, all_but_every};
use super::{Defaults, Family, REMEDY, Reader, shorten};
use crate::LlmError;

/// The sliding window and the layers that have it. In Mistral, these are all layers; in Qwen2 and Qwen3, if enabled by a flag, those of
/// `layer_types`, or from `max_window_layers` on; in SmolLM3, if enabled, those of `layer_types`, or without RoPE.
pub(super) fn window(
    r: &Reader<'_>,
    family: Family,
    defaults: &Defaults,
    rope: &LayerSet,
    layers: usize,
    context: usize,
) -> Result<(Option<usize>, LayerSet), LlmError> {
    let size = match r.size("sliding_window")? {
        None if r.config.get("sliding_window").is_none() => defaults.window,
        read => read,
    };
    let flag = r.flag("use_sliding_window")?;
    let types = types(r, layers)?;
    let size = match family {
        Family::Mistral => size,
        Family::Qwen2 | Family::Qwen3 | Family::SmolLm3 => size.filter(|_| flag),
        Family::Llama | Family::BitNet | Family::MiniCpm => None,
    };
    let sliding = match family {
        Family::Mistral => {
            let all = vec![size.is_some(); layers];
            // The code of Mistral does not read the key.
            if let Some(types) = types.filter(|types| *types != all) {
                let sliding = types.iter().filter(|is_sliding| **is_sliding).count();
                let name = format!("`layer_types` with {sliding} of {layers} sliding layers in Mistral");
                return Err(r.unsupported(name, REMEDY));
            }
            all
        }
        Family::Qwen2 | Family::Qwen3 => {
            // The first layers have full attention; the key is their number.
            let full = match r.get("max_window_layers") {
                None => 28,
                Some(value) => {
                    let count = value.as_u64().and_then(|n| usize::try_from(n).ok());
                    count.ok_or_else(|| r.error("max_window_layers", "a number of layers"))?
                }
            };
            types.unwrap_or_else(|| (0..layers).map(|layer| size.is_some() && layer >= full).collect())
        }
        Family::SmolLm3 => types
            .unwrap_or_else(|| (0..layers).map(|layer| size.is_some() && !rope.contains(layer)).collect()),
        Family::Llama | Family::BitNet | Family::MiniCpm => {
            if flag || types.is_some_and(|sliding| sliding.contains(&true)) {
                let key = if flag { "use_sliding_window" } else { "layer_types" };
                return Err(r.unsupported(format!("`{key}` of an architecture without windows"), REMEDY));
            }
            vec![false; layers]
        }
    };
    match size {
        _ if !sliding.contains(&true) => Ok((None, LayerSet::All)),
        // SmolLM3 then attends to all positions, as its code does; in the others, the keys contradict each other.
        None if family == Family::SmolLm3 => Ok((None, LayerSet::All)),
        None => {
            let name = "`layer_types` with sliding layers, without use_sliding_window and sliding_window";
            Err(r.unsupported(name.to_owned(), REMEDY))
        }
        // A window as long as the context masks nothing.
        Some(size) if size >= context && sliding.contains(&false) => Ok((None, LayerSet::All)),
        Some(size) => Ok((Some(size), LayerSet::from_flags(sliding))),
    }
}

/// Which layers have a sliding window according to `layer_types`.
fn types(r: &Reader<'_>, layers: usize) -> Result<Option<Vec<bool>>, LlmError> {
    let Some(value) = r.get("layer_types") else { return Ok(None) };
    let expected = format!("a list of {layers} types, `full_attention` or `sliding_attention`");
    let list = value.as_array().filter(|list| list.len() == layers);
    let list = list.ok_or_else(|| r.error("layer_types", &expected))?;
    let is_sliding = |kind: &serde_json::Value| match kind.as_str() {
        Some("full_attention" | "attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        Some(other) => Err(r.unsupported(format!("`layer_types` with {}", shorten(other)), REMEDY)),
        None => Err(r.error("layer_types", &expected)),
    };
    list.iter().map(is_sliding).collect::<Result<_, _>>().map(Some)
}

/// The layers with RoPE: in SmolLM3 those whose element of `no_rope_layers` is 1, by default all but every fourth; in other
/// families all.
pub(super) fn rope(r: &Reader<'_>, family: Family, layers: usize) -> Result<LayerSet, LlmError> {
    if family != Family::SmolLm3 {
        return Ok(LayerSet::All);
    }
    let Some(value) = r.get("no_rope_layers") else {
        let interval = r.size("no_rope_layer_interval")?.unwrap_or(ROPE_INTERVAL);
        return Ok(all_but_every(interval, layers));
    };
    let expected =
        format!("a list of at least {layers} elements, 1 for a layer with RoPE and 0 for one without");
    let list = value.as_array().filter(|list| list.len() >= layers);
    let list = list.ok_or_else(|| r.error("no_rope_layers", &expected))?;
    let has_rope = |element: &serde_json::Value| match element.as_u64() {
        Some(flag @ 0..=1) => Ok(flag == 1),
        _ => Err(r.error("no_rope_layers", &expected)),
    };
    Ok(LayerSet::from_flags(list[..layers].iter().map(has_rope).collect::<Result<Vec<_>, _>>()?))
}

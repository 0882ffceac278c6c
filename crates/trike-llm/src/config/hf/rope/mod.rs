//! RoPE settings of a `config.json`.

use serde_json::Value;
use trike_nn::{RopePairing, RopeScaling, RopeSpec};

use super::{Defaults, REMEDY, Reader, shorten};
use crate::{LlmError, config::keys};

/// The rotary embedding, and the context length that it supports.
///
/// Older configurations have `rope_theta` next to `rope_scaling`, newer ones all settings in `rope_parameters`; transformers reads
/// either object with all keys.
pub(super) fn rope(r: &Reader<'_>, defaults: &Defaults) -> Result<(RopeSpec, usize), LlmError> {
    let context = r.size("max_position_embeddings")?.unwrap_or(defaults.context);
    let Some((key, object)) = object(r)? else {
        let theta = r.float("rope_theta", defaults.theta)?;
        return Ok((RopeSpec::new(theta, RopePairing::Halves), context));
    };
    keys::ROPE.check_json(r.path, None, object)?;
    let inner = Reader { path: r.path, config: object };
    let theta = match inner.get("rope_theta") {
        Some(_) => inner.float("rope_theta", defaults.theta)?,
        None => r.float("rope_theta", defaults.theta)?,
    };
    let mut spec = RopeSpec::new(theta, RopePairing::Halves);
    // A key outside the object takes precedence; without one, the context is the original one.
    let original = match r.size("original_max_position_embeddings")? {
        Some(original) => original,
        None => inner.size("original_max_position_embeddings")?.unwrap_or(context),
    };
    let number = |key: &str| match inner.get(key) {
        Some(_) => inner.float(key, 1.0),
        None => Err(inner.error(key, "a number")),
    };
    let mut reach = context;
    spec.scaling = match kind(&inner, key)? {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: number("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original_context: original,
        },
        "yarn" => {
            // Null means the quotient of the two lengths.
            let factor = match object.get("factor") {
                Some(Value::Null) => context as f32 / original as f32,
                _ => number("factor")?,
            };
            // `max_position_embeddings` may be the trained context; the scaled context is its product with the factor.
            reach = context.max((original as f64 * f64::from(factor)) as usize);
            // Zero means the default, as for null.
            let beta = |key: &str, default: f32| {
                inner.float(key, default).map(|beta| if beta == 0.0 { default } else { beta })
            };
            RopeScaling::Yarn {
                factor,
                beta_fast: beta("beta_fast", 32.0)?,
                beta_slow: beta("beta_slow", 1.0)?,
                original_context: original,
                attention_factor: attention_factor(&inner, factor)?,
            }
        }
        "longrope" => {
            let factors = RopeScaling::Factors(one_list(r, &inner, context <= original)?);
            // By default, the extension of the context changes the scale of the logits too.
            let extension = inner.float("factor", context as f32 / original as f32)?;
            let default = if extension <= 1.0 { 1.0 } else { f32::NAN };
            if inner.float("attention_factor", default)? != 1.0 {
                let name = format!("{key} of type longrope with another attention_factor than 1");
                return Err(r.unsupported(name, REMEDY));
            }
            factors
        }
        kind => return Err(r.unsupported(format!("{key} of type {}", shorten(kind)), REMEDY)),
    };
    Ok((spec, reach))
}

/// The object with the RoPE settings, and its key.
fn object<'a>(r: &Reader<'a>) -> Result<Option<(&'static str, &'a Value)>, LlmError> {
    let named = |key: &'static str| match r.config.get(key).filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(value) => match value.as_object() {
            Some(object) => Ok((!object.is_empty()).then_some((key, value))),
            None => Err(r.error(key, "an object with a rope_type")),
        },
    };
    match (named("rope_scaling")?, named("rope_parameters")?) {
        (Some((_, old)), Some((_, new))) if old != new => Err(r.unsupported(
            "`rope_scaling` together with a different `rope_parameters`".to_owned(),
            "remove one of them",
        )),
        (old, new) => Ok(old.or(new)),
    }
}

/// The type of the scaling. It is required: some programs ignore a factor without a type, others apply it.
fn kind<'a>(inner: &Reader<'a>, key: &str) -> Result<&'a str, LlmError> {
    let object = inner.config;
    let value = |key| object.get(key).filter(|value: &&Value| !value.is_null());
    let named = ["rope_type", "type"].into_iter().find_map(|key| Some((key, value(key)?)));
    match named {
        Some((_, Value::String(kind))) => Ok(kind),
        Some((name, _)) => Err(inner.error(name, "the name of a scaling")),
        None if inner.get("factor").is_none() => Ok("default"),
        None => {
            Err(inner.error("rope_type", &format!("the type of the scaling in {key}, as it has a factor")))
        }
    }
}

/// The attention factor of YaRN, which scales rotated queries and keys: given, a quotient of two mscale values, or the default of
/// the paper.
fn attention_factor(inner: &Reader<'_>, factor: f32) -> Result<f32, LlmError> {
    let paper = |scale: f32| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let [scale, all] = [inner.float("mscale", 0.0)?, inner.float("mscale_all_dim", 0.0)?];
    let default = if scale != 0.0 && all != 0.0 { paper(scale) / paper(all) } else { paper(1.0) };
    inner.float("attention_factor", default)
}

/// The factors of LongRoPE, if one list serves every length: when both lists are equal, or when the context length does not exceed
/// the original context.
fn one_list(r: &Reader<'_>, inner: &Reader<'_>, short_only: bool) -> Result<Vec<f32>, LlmError> {
    let list = |key: &str| {
        let numbers = inner
            .get(key)
            .and_then(Value::as_array)
            .and_then(|list| list.iter().map(|v| v.as_f64().map(|x| x as f32)).collect::<Option<Vec<f32>>>());
        numbers.ok_or_else(|| inner.error(key, "a list of numbers"))
    };
    let (short, long) = (list("short_factor")?, list("long_factor")?);
    if short != long && !short_only {
        let name = "longrope with another `long_factor` past the original context".to_owned();
        return Err(r.unsupported(name, REMEDY));
    }
    Ok(short)
}

#[cfg(test)]
mod tests;

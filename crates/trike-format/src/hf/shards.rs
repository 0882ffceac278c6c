//! The safetensors files of a directory: one file, or shards that match their index.

use std::path::Path;

use serde_json::{Map, Value};

use super::{INDEX, WEIGHTS, container::Container, read_json};
use crate::{
    FormatError,
    error::Place,
    look::{self, not_a_model},
};

/// The largest real models have fewer than 200 shards; each stays mapped.
const MAX_SHARDS: usize = 4096;

/// Opens `model.safetensors`, or the shards that the index lists.
pub(super) fn open(dir: &Path) -> Result<Vec<Container>, FormatError> {
    let single = dir.join(WEIGHTS);
    if look::regular(&single)?.is_some() {
        return Ok(vec![Container::open(&single)?]);
    }
    let index_path = dir.join(INDEX);
    if look::regular(&index_path)?.is_none() {
        return Err(no_weights(dir));
    }
    let index = read_json(&index_path)?;
    let bad = |expected: &str, got: String| FormatError::Header {
        path: index_path.clone(),
        what: "`weight_map`".to_owned(),
        expected: expected.to_owned(),
        got,
    };
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
        return Err(bad("an object from tensor names to files", "none".to_owned()));
    };
    let mut files: Vec<&str> = Vec::new();
    for (name, file) in map {
        let plain = |f: &&str| f.ends_with(".safetensors") && !f.contains(['/', '\\']) && !f.starts_with('.');
        // A path could point outside the directory.
        let file = file.as_str().filter(plain);
        files.push(
            file.ok_or_else(|| bad("names of .safetensors files", format!("{} for `{name}`", map[name])))?,
        );
    }
    files.sort_unstable();
    files.dedup();
    if files.len() > MAX_SHARDS {
        return Err(FormatError::OverLimit {
            path: index_path,
            what: "the number of shards".to_owned(),
            limit: MAX_SHARDS as u64,
            got: files.len() as u64,
        });
    }
    let mut containers = Vec::with_capacity(files.len());
    for file in &files {
        let path = dir.join(file);
        if look::regular(&path)?.is_none() {
            return Err(not_a_model(&path, "a shard listed in the index is missing", "finish the download"));
        }
        containers.push(Container::open(&path)?);
    }
    agree(&index_path, map, &files, &containers)?;
    Ok(containers)
}

/// Checks that every tensor is in the shard that the index gives, and in no other.
fn agree(
    index_path: &Path,
    map: &Map<String, Value>,
    files: &[&str],
    containers: &[Container],
) -> Result<(), FormatError> {
    for (name, file) in map {
        let shard = files.iter().position(|f| file.as_str() == Some(f)).map(|i| &containers[i]);
        if shard.is_none_or(|shard| shard.slot(name).is_none()) {
            let place = Place { path: index_path, tensor: name };
            return Err(place.layout(format!("the tensor in {file}"), "no such tensor there"));
        }
    }
    for (file, container) in files.iter().zip(containers) {
        let stray = |name: &&str| map.get(*name).and_then(Value::as_str) != Some(file);
        if let Some(name) = container.names().find(stray) {
            let place = Place { path: container.path(), tensor: name };
            let expected = match map.get(name) {
                Some(other) => format!("the tensor only in {other}, as in {INDEX}"),
                None => format!("an entry in {INDEX}"),
            };
            return Err(place.layout(expected, format!("a tensor in {file}")));
        }
    }
    Ok(())
}

/// The error for a directory without readable weights, with what it contains instead.
fn no_weights(dir: &Path) -> FormatError {
    let has = |name: &str| dir.join(name).is_file();
    let (found, remedy) = if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
        (
            "PyTorch weights (pytorch_model.bin)",
            "save the model again as safetensors: Trike does not run pickled code",
        )
    } else if has("consolidated.safetensors") || has("consolidated.00.pth") {
        ("weights in the original authors' layout", "use the model's HuggingFace version")
    } else if has("tf_model.h5") || has("flax_model.msgpack") {
        ("TensorFlow or Flax weights", "save the model again as safetensors")
    } else {
        (
            "no model.safetensors and no model.safetensors.index.json",
            "finish the download, or give the path of a file",
        )
    };
    not_a_model(dir, found, remedy)
}

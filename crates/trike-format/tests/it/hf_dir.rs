//! HuggingFace directories: bit-exact packed tensors, shards, dense checkpoints, and invalid directories.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;
use trike_core::{TileLayout, Tiles};
use trike_format::{
    DenseData, DenseTensor, FileKind, FormatError, HfDir, HfDirWriter, Int8Tensor, Tensor, TensorSource,
    detect, exact_trits,
};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Hadamard, ScaleValues, Scales, TritTensor};

fn scratch() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    (dir, path)
}

fn scale_values(rng: &mut Rng, n: usize, half: bool) -> ScaleValues {
    let values = rng.normals(n);
    if half { values.into_iter().map(f16::from_f32).collect::<Vec<_>>().into() } else { values.into() }
}

/// Every encoding, granularity, coupling and depth, f16 and f32 scales, with and without means.
fn ternary_tensors() -> Vec<(String, Tensor)> {
    let mut rng = Rng::new(31);
    let granularities: Vec<Granularity> = [Granularity::Tensor, Granularity::Row]
        .into_iter()
        .chain(GroupSize::ALL.map(Granularity::Group))
        .collect();
    let mut tensors = Vec::new();
    for encoding in Encoding::ALL {
        for &granularity in &granularities {
            for (depth, coupling) in
                [(1, Coupling::Free), (1, Coupling::Tied), (3, Coupling::Free), (6, Coupling::Tied)]
            {
                let (rows, cols) = (1 + rng.below(6), 1 + rng.below(400));
                let density = [0.02, 0.3, 0.9][rng.below(3)];
                let planes: Vec<Vec<i8>> = (0..depth).map(|_| rng.trits(rows * cols, density)).collect();
                let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
                let set = granularity.count(rows, cols).unwrap();
                let sets = if coupling == Coupling::Free { depth } else { 1 };
                let (half, has_means) = (rng.below(2) == 0, rng.below(2) == 0);
                let means = has_means.then(|| scale_values(&mut rng, set, !half));
                let scales = Scales::new(granularity, scale_values(&mut rng, set * sets, half), means);
                let tensor =
                    TritTensor::from_planes(rows, cols, &planes, encoding, coupling, scales).unwrap();
                let name = format!("model.{encoding}.{granularity}.{depth}.{coupling}.weight");
                // Tensors whose rows are whole blocks are rotated.
                let tensor = tensor.with_rotation(Hadamard::largest(cols, 8)).unwrap();
                tensors.push((name, tensor.into()));
            }
        }
    }
    tensors
}

fn write(path: &Path, tensors: &[(String, Tensor)], limit: Option<u64>) {
    write_as(path, tensors, limit, None);
}

fn write_as(path: &Path, tensors: &[(String, Tensor)], limit: Option<u64>, tiles: Option<TileLayout>) {
    let mut writer = HfDirWriter::create(path, json!({ "model_type": "llama", "hidden_size": 4 })).unwrap();
    if let Some(limit) = limit {
        writer = writer.shard_limit(limit);
    }
    for (name, tensor) in tensors {
        match tiles {
            Some(layout) => writer.tiles(name, tensor, layout).unwrap(),
            None => writer.tensor(name, tensor).unwrap(),
        }
    }
    writer.write_file("tokenizer.json", b"{}").unwrap();
    writer.finish().unwrap();
}

fn tensor_encoding(tensor: &Tensor) -> Encoding {
    let Tensor::Ternary(tensor) = tensor else { panic!("not ternary") };
    tensor.encoding()
}

#[test]
fn every_packed_form_comes_back_bit_for_bit_in_one_file_and_in_shards() {
    let mut tensors = ternary_tensors();
    let mut rng = Rng::new(32);
    for (group, half) in [(1, true), (32, false), (70, true)] {
        let dense = DenseTensor::new(vec![5, 70], DenseData::F32(rng.normals(350))).unwrap();
        let int8 = Int8Tensor::quantize(&dense, group, half).unwrap();
        tensors.push((format!("model.int8.{group}.weight"), int8.into()));
    }
    let values = rng.normals(6);
    let data = [
        ("f32", DenseData::F32(values.clone())),
        ("f16", DenseData::F16(values.iter().map(|&v| f16::from_f32(v)).collect())),
        ("bf16", DenseData::Bf16(values.iter().map(|&v| bf16::from_f32(v)).collect())),
    ];
    for (name, data) in data {
        tensors.push((format!("norm.{name}"), DenseTensor::new(vec![6], data).unwrap().into()));
    }
    let whole = [None, Some(10_000), Some(0)].map(|limit| (limit, None));
    let tiled = [(None, Some(TileLayout::TwoBit)), (Some(10_000), Some(TileLayout::Base3))];
    for (limit, tiles) in whole.into_iter().chain(tiled) {
        let (_dir, path) = scratch();
        write_as(&path, &tensors, limit, tiles);
        assert_eq!(detect(&path).unwrap(), FileKind::HfDir);
        let dir = HfDir::open(&path).unwrap();
        assert_eq!(dir.config()["hidden_size"], 4);
        assert_eq!(dir.file("model.safetensors").is_some(), limit.is_none());
        assert!(dir.file("tokenizer.json").is_some() && dir.file("vocab.json").is_none());
        assert_eq!(dir.tensors().len(), tensors.len());
        for (name, tensor) in &tensors {
            assert_eq!(&dir.load(name).unwrap(), tensor, "{name}");
            assert_eq!(dir.info(name).unwrap().shape, tensor.shape());
            let mapped = dir.tiles(name).unwrap();
            assert_eq!(mapped.is_some(), tiles.is_some() && !matches!(tensor, Tensor::Dense(_)), "{name}");
            match mapped {
                Some(Tiles::Trits(tiles)) => {
                    tiles.check().unwrap();
                    assert!(tiles.codes.as_ptr().addr().is_multiple_of(64), "{name} is aligned");
                    assert_eq!(&Tensor::from(tiles.to_tensor(tensor_encoding(tensor)).unwrap()), tensor);
                }
                Some(Tiles::Int8(tiles)) => {
                    assert!(tiles.lines.as_ptr().addr().is_multiple_of(64), "{name} is aligned");
                    assert_eq!(&Tensor::from(tiles.to_tensor().unwrap()), tensor);
                }
                None => {}
            }
        }
        let left: Vec<_> = std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|n| !n.to_string_lossy().starts_with('.')), "{left:?}");
    }
}

#[test]
fn names_are_sorted_with_layer_2_before_layer_10() {
    let (_dir, path) = scratch();
    let norm = |_| Tensor::from(DenseTensor::new(vec![1], DenseData::F32(vec![1.0])).unwrap());
    let names = ["model.layers.10.w", "model.layers.2.w", "lm_head.w", "model.norm.w"];
    write(&path, &names.map(|n| (n.to_owned(), norm(n))), None);
    let dir = HfDir::open(&path).unwrap();
    let got: Vec<&str> = dir.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(got, ["lm_head.w", "model.layers.2.w", "model.layers.10.w", "model.norm.w"]);
}

#[test]
fn the_parts_are_what_the_documentation_says() {
    let (_dir, path) = scratch();
    let trits = [1, 0, -1, 1, 0, 0, -1];
    let tensor = TritTensor::from_trits(1, 7, &trits, Encoding::Base3, Scales::tensor(0.5)).unwrap();
    write(&path, &[("w".to_owned(), tensor.into())], None);
    let config: Value = serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
    let entry = json!({ "shape": [1, 7], "encoding": "base3", "depth": 1, "coupling": "free",
                        "granularity": "tensor", "scale_dtype": "F32" });
    let packing = json!({ "quant_method": "trike", "version": 1, "tensors": { "w": entry } });
    assert_eq!(config["quantization_config"], packing);
    let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    // 2 + 1*3 + 0*9 + 2*27 + 1*81, and 1 + 0*3 with a tail of ones: 9 + 27 + 81.
    let part = file.tensor("w.trits").unwrap();
    assert_eq!((part.dtype(), part.shape(), part.data()), (Dtype::U8, &[1, 1, 2][..], &[140, 118][..]));
    assert_eq!(file.tensor("w.scales").unwrap().data(), 0.5f32.to_le_bytes());
}

#[test]
fn the_tiles_are_what_the_documentation_says() {
    let (_dir, path) = scratch();
    let trits: Vec<i8> = (0..2 * 17).map(|i| if i == 17 { -1 } else { 1 }).collect();
    let scales = Scales::new(Granularity::Row, vec![0.5, 2.0], None);
    let tensor = Tensor::from(TritTensor::from_trits(2, 17, &trits, Encoding::Base3, scales).unwrap());
    write_as(&path, &[("w".to_owned(), tensor.clone())], None, Some(TileLayout::TwoBit));
    let config: Value = serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
    let entry = json!({ "shape": [2, 17], "encoding": "base3", "tiles": "two-bit", "depth": 1,
                        "coupling": "free", "granularity": "row", "scale_dtype": "F32" });
    let packing = json!({ "quant_method": "trike", "version": 3, "tensors": { "w": entry } });
    assert_eq!(config["quantization_config"], packing);
    let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tiles = file.tensor("w.tiles").unwrap();
    assert_eq!((tiles.dtype(), tiles.shape()), (Dtype::U8, &[2, 64][..]));
    // 2, 2, 2 and 2 in row 0; 0 in column 0 of row 1; column 16 and its padding; padding rows.
    let expected = [[0xAA; 4], [0xA8, 0xAA, 0xAA, 0xAA], [0x55; 4]];
    assert_eq!(tiles.data()[..12], expected.concat());
    assert_eq!(tiles.data()[64..72], [0x56, 0x55, 0x55, 0x55, 0x56, 0x55, 0x55, 0x55]);
    let scales = file.tensor("w.scales").unwrap();
    assert_eq!((scales.dtype(), scales.shape()), (Dtype::F32, &[1, 1, 1, 16][..]));
    assert_eq!(scales.data()[..12], floats(&[0.5, 2.0, 0.0]));

    // Overwritten in place, in tiles.
    let trits: Vec<i8> = (0..34).map(|i| [0, -1, 1][i % 3]).collect();
    let scales = Scales::new(Granularity::Row, vec![0.5, 3.0], None);
    let other = Tensor::from(TritTensor::from_trits(2, 17, &trits, Encoding::Base3, scales).unwrap());
    HfDir::open(&path).unwrap().overwrite("w", &other).unwrap();
    assert_eq!(HfDir::open(&path).unwrap().load("w").unwrap(), other);

    // A layout of a future version, and damaged parts.
    let text = config.to_string();
    let open = |from: &str, to: &str| {
        std::fs::write(path.join("config.json"), text.replace(from, to)).unwrap();
        HfDir::open(&path).and_then(|dir| dir.load("w")).unwrap_err().to_string()
    };
    assert!(open("two-bit", "four-bit").contains("use a newer version of Trike"));
    assert!(open("two-bit", "base3").contains("`.tiles` as U8 [1, 64]"));
    assert!(open("[2,17]", "[2,100]").contains("`.tiles` as U8 [7, 64]"));
    assert!(open("\"version\":3", "\"version\":4").contains("version 4"));
    std::fs::write(path.join("config.json"), &text).unwrap();
    let mut damaged = bytes.clone();
    let start = bytes.len() - 2 * 64;
    damaged[start] = 0xFF;
    std::fs::write(path.join("model.safetensors"), damaged).unwrap();
    let message = HfDir::open(&path).unwrap().load("w").unwrap_err().to_string();
    assert!(message.contains("255 is not a code"), "{message}");
}

/// A stored tensor: name, type, shape, bytes.
type Stored = (&'static str, Dtype, Vec<usize>, Vec<u8>);

#[test]
fn rotated_tensors_have_other_parts_and_another_version() {
    let (_dir, path) = scratch();
    let tensor = TritTensor::from_trits(1, 4, &[1, 0, -1, 1], Encoding::Base3, Scales::tensor(0.5)).unwrap();
    let tensor = tensor.with_rotation(Some(Hadamard::new(2).unwrap())).unwrap();
    write(&path, &[("w".to_owned(), tensor.clone().into())], None);
    assert_eq!(HfDir::open(&path).unwrap().load("w").unwrap(), tensor.into());
    let config: Value = serde_json::from_slice(&std::fs::read(path.join("config.json")).unwrap()).unwrap();
    // A reader of version 1 only rejects this.
    assert_eq!(config["quantization_config"]["version"], 2);
    assert_eq!(config["quantization_config"]["tensors"]["w"]["rotation"], 2);
    let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert!(file.tensor("w.trits").is_err() && file.tensor("w.rotated").is_ok());
    assert_eq!(file.tensor("w.rotation").unwrap().data(), 2u32.to_le_bytes());

    let entry = |rotation: Value| {
        json!({ "shape": [1, 4], "encoding": "base3", "depth": 1, "coupling": "free",
                "granularity": "tensor", "scale_dtype": "F32", "rotation": rotation })
    };
    let open = |rotation: Value, block: u32| {
        let (dir, path) = scratch();
        let packing = json!({ "quant_method": "trike", "version": 2, "tensors": { "w": entry(rotation) } });
        let parts = vec![
            ("w.rotated", Dtype::U8, vec![1, 1, 1], vec![121]),
            ("w.rotation", Dtype::U32, vec![1], block.to_le_bytes().to_vec()),
            ("w.scales", Dtype::F32, vec![1], floats(&[1.0])),
        ];
        foreign(&path, &json!({ "quantization_config": packing }), &[("model.safetensors", parts)]);
        let opened = HfDir::open(&path).and_then(|file| file.load("w"));
        drop(dir);
        opened.map_err(|e| e.to_string())
    };
    assert!(open(json!(4), 4).is_ok());
    for (rotation, block, expected) in [
        (json!(3), 3, "a power of two from 2 to 1024 that divides the columns, got 3"),
        (json!(8), 8, "a power of two from 2 to 1024 that divides the columns, got 8"),
        (json!("4"), 4, "`rotation` in quantization_config to be a count"),
        (json!(4), 2, "`.rotation` to be 4, got [2]"),
        (Value::Null, 4, "a part `w.trits`"),
    ] {
        let message = open(rotation, block).unwrap_err();
        assert!(message.contains(expected), "expected {expected}, got {message}");
    }
}

/// Writes a directory with the safetensors crate, as other tools would.
fn foreign(path: &Path, config: &Value, files: &[(&str, Vec<Stored>)]) {
    std::fs::create_dir_all(path).unwrap();
    std::fs::write(path.join("config.json"), config.to_string()).unwrap();
    for (file, tensors) in files {
        let views: HashMap<&str, TensorView<'_>> = tensors
            .iter()
            .map(|(name, dtype, shape, data)| (*name, TensorView::new(*dtype, shape.clone(), data).unwrap()))
            .collect();
        std::fs::write(path.join(file), safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn a_sharded_dense_checkpoint_of_another_tool() {
    let (_dir, path) = scratch();
    let shard = |name, value| vec![(name, Dtype::F32, vec![1, 2], floats(&[value, 0.5]))];
    let files = [
        ("model-00001-of-00002.safetensors", shard("a", 1.0)),
        ("model-00002-of-00002.safetensors", shard("b", 2.0)),
    ];
    foreign(&path, &json!({}), &files);
    assert!(HfDir::open(&path).unwrap_err().to_string().contains("no model.safetensors"));
    let index = |b: &str| {
        let map = json!({ "weight_map": { "a": "model-00001-of-00002.safetensors", "b": b } });
        std::fs::write(path.join("model.safetensors.index.json"), map.to_string()).unwrap();
    };
    index("model-00002-of-00002.safetensors");
    let dir = HfDir::open(&path).unwrap();
    assert_eq!(dir.load("b").unwrap().to_f32(), [2.0, 0.5]);
    assert_eq!(dir.tensors()[0].kind.to_string(), "F32");
    assert!(matches!(dir.load("c"), Err(FormatError::MissingTensor { .. })));

    for (file, expected) in [
        ("../model-00002-of-00002.safetensors", "names of .safetensors files"),
        ("/etc/passwd", "names of .safetensors files"),
        ("model-00001-of-00002.safetensors", "`b`"),
        ("missing.safetensors", "missing.safetensors: a shard listed in the index is missing"),
    ] {
        index(file);
        let message = HfDir::open(&path).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn types_that_are_not_read_are_listed_and_refused() {
    let (_dir, path) = scratch();
    let tensors = vec![
        ("u", Dtype::U8, vec![4], vec![0; 4]),
        ("f8", Dtype::F8_E4M3, vec![2, 2], vec![0; 4]),
        ("nan", Dtype::F32, vec![2], floats(&[1.0, f32::NAN])),
        ("scalar", Dtype::F32, vec![], floats(&[1.0])),
    ];
    foreign(&path, &json!({ "quantization_config": null }), &[("model.safetensors", tensors)]);
    let dir = HfDir::open(&path).unwrap();
    for (name, expected) in [
        (
            "u",
            "stored as U8, which Trike does not read; it may be packed, but config.json does not describe how",
        ),
        ("f8", "stored as F8_E4M3"),
        ("nan", "weight 1 is NaN"),
        ("scalar", "shape [] is invalid"),
    ] {
        let message = dir.load(name).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(&format!("`{name}`")), "{message}");
        assert!(message.contains("model.safetensors"), "{message}");
    }
}

#[test]
fn other_packings_and_other_versions_are_refused_by_name() {
    let tensors = || vec![("w", Dtype::F32, vec![1], floats(&[1.0]))];
    for (packing, expected) in [
        (json!({ "quant_method": "gptq", "bits": 4 }), "`quant_method gptq`"),
        (json!({ "bits": 4 }), "`quant_method (none)`"),
        (json!({ "quant_method": "trike", "version": 4, "tensors": {} }), "`trike packing version 4`"),
        (json!({ "quant_method": "trike", "version": "1" }), "version \"1\""),
        (json!({ "quant_method": "trike", "version": 1 }), "`quantization_config.tensors`"),
    ] {
        let (_dir, path) = scratch();
        foreign(&path, &json!({ "quantization_config": packing }), &[("model.safetensors", tensors())]);
        let message = HfDir::open(&path).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("config.json"), "{message}");
    }
}

#[test]
fn packed_parts_that_do_not_fit_are_refused() {
    let entry = |key: &str, value: Value| {
        let mut entry = json!({ "shape": [2, 7], "encoding": "base3", "depth": 1, "coupling": "free",
                                "granularity": "row", "scale_dtype": "F32" });
        entry[key] = value;
        entry
    };
    let parts = || {
        vec![
            ("w.trits", Dtype::U8, vec![1, 2, 2], vec![121; 4]),
            ("w.scales", Dtype::F32, vec![1, 2], floats(&[1.0, 2.0])),
        ]
    };
    let open = |entry: Value, parts| {
        let (dir, path) = scratch();
        let packing = json!({ "quant_method": "trike", "version": 1, "tensors": { "w": entry } });
        foreign(&path, &json!({ "quantization_config": packing }), &[("model.safetensors", parts)]);
        (dir, HfDir::open(&path))
    };
    let good = entry("depth", 1.into());
    assert_eq!(open(good.clone(), parts()).1.unwrap().load("w").unwrap().to_f32(), [0.0; 14]);

    for (key, value, expected) in [
        ("encoding", json!("ternary9"), "stored as `ternary9`"),
        ("encoding", json!(3), "`encoding` in quantization_config to be a string, got 3"),
        ("encoding", json!("csr"), "`.trits` as U8 of one axis, got U8 [1, 2, 2]"),
        ("encoding", json!("2bit"), "`.trits` as U8 [1, 2, 8], got U8 [1, 2, 2]"),
        ("coupling", json!("loose"), "`loose`"),
        ("granularity", json!("group48"), "`group48`"),
        ("granularity", json!("tensor"), "`.scales` as F32 [1], got F32 [1, 2]"),
        ("scale_dtype", json!("F16"), "`.scales` as F16 [1, 2], got F32 [1, 2]"),
        ("scale_dtype", json!("F64"), "F16 or F32"),
        ("mean_dtype", json!("F32"), "a part `w.means`"),
        ("depth", json!(2), "`.trits` as U8 [2, 2, 2]"),
        ("depth", json!(7), "1 to 6 planes, got 7"),
        ("depth", json!(-1), "`depth` in quantization_config to be a count, got -1"),
        ("shape", json!([2, 0]), "[rows, cols]"),
        ("shape", json!([2, 7, 1]), "[rows, cols]"),
        ("shape", json!([4294967295u32, 4294967295u32]), "[rows, cols]"),
        ("shape", json!([3, 7]), "`.trits` as U8 [1, 3, 2]"),
    ] {
        let message = open(entry(key, value), parts()).1.unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("`w`"), "expected {expected}, got {message}");
    }

    // Parts of the right size with invalid contents are detected when the tensor is loaded.
    for (at, data, expected) in [
        (0, vec![121, 121, 243, 121], "243 is not a code of base3"),
        (0, vec![121, 0, 121, 121], "only zero trits after the last column"),
        (1, floats(&[1.0, f32::INFINITY]), "scale 1 is inf"),
    ] {
        let mut parts = parts();
        parts[at].3 = data;
        let (_dir, opened) = open(good.clone(), parts);
        let message = opened.unwrap().load("w").unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("`w`"), "{message}");
    }

    // Offsets that contradict the entries.
    let csr = |offsets: [u32; 3], entries: Vec<u8>| {
        let offsets = offsets.iter().flat_map(|o| o.to_le_bytes()).collect();
        vec![
            ("w.trits", Dtype::U8, vec![entries.len()], entries),
            ("w.offsets", Dtype::U32, vec![1, 3], offsets),
            ("w.scales", Dtype::F32, vec![1, 2], floats(&[1.0, 2.0])),
        ]
    };
    let entry = entry("encoding", json!("csr"));
    let (_dir, opened) = open(entry.clone(), csr([0, 1, 2], vec![0, 0x81]));
    let mut want = [0.0; 14];
    (want[0], want[8]) = (1.0, -2.0);
    assert_eq!(opened.unwrap().load("w").unwrap().to_f32(), want);
    for (offsets, entries) in [
        ([0, 1, 3], vec![0, 0x81]),
        ([0, 1, 1], vec![0, 0]),
        ([0, 2, 1], vec![0]),
        ([1, 1, 1], vec![0]),
        ([0, 0, 1], vec![7]),
    ] {
        let (_dir, opened) = open(entry.clone(), csr(offsets, entries));
        assert!(opened.unwrap().load("w").is_err());
    }
}

#[test]
fn containers_that_contradict_themselves() {
    let (_dir, path) = scratch();
    foreign(&path, &json!({}), &[]);
    let message = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        std::fs::write(path.join("model.safetensors"), bytes).unwrap();
        HfDir::open(&path).unwrap_err().to_string()
    };
    let one = |entry: &str| format!(r#"{{"w":{entry}}}"#);
    for (header, data, expected) in [
        (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#), 7, "truncated at the data of tensor `w`"),
        (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#), 9, "the size of the file"),
        (one(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#), 8, "`w`: expected the size of F32 [3], got 8"),
        (one(r#"{"dtype":"F16","shape":[2],"data_offsets":[0,8]}"#), 8, "`w`"),
        (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#), 8, "`w`"),
        (one(r#"{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#), 12, "starts at byte 0"),
        (one(r#"{"dtype":"F4000","shape":[2],"data_offsets":[0,8]}"#), 8, "F4000"),
        (
            one(r#"{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,0]}"#),
            0,
            "the size of F64",
        ),
        (
            one(r#"{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}"#),
            0,
            "the size of U8",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#
                .to_owned(),
            6,
            "`b`: expected data that starts at byte 4",
        ),
        ("[1]".to_owned(), 0, "a JSON object"),
        ("{\"w\":".to_owned(), 0, "the safetensors header"),
        ("[".repeat(100_000), 0, "the safetensors header"),
    ] {
        let message = message(&header, data);
        assert!(message.contains(expected) && message.contains("model.safetensors"), "{message}");
    }
    std::fs::write(path.join("model.safetensors"), u64::MAX.to_le_bytes()).unwrap();
    assert!(HfDir::open(&path).unwrap_err().to_string().contains("expected at most 16777216"));
    std::fs::write(path.join("model.safetensors"), [0; 7]).unwrap();
    assert!(HfDir::open(&path).unwrap_err().to_string().contains("truncated"));
}

#[test]
fn directories_without_safetensors_say_what_they_hold() {
    for (file, expected) in [
        ("pytorch_model.bin", "PyTorch"),
        ("consolidated.00.pth", "original authors"),
        ("tf_model.h5", "TensorFlow"),
        ("README.md", "no model.safetensors"),
    ] {
        let (_dir, path) = scratch();
        foreign(&path, &json!({}), &[]);
        std::fs::write(path.join(file), b"x").unwrap();
        let message = HfDir::open(&path).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn the_writer_refuses_what_would_not_be_read_back() {
    let (_dir, path) = scratch();
    let norm = Tensor::from(DenseTensor::new(vec![1], DenseData::F32(vec![1.0])).unwrap());
    let trits: Tensor =
        TritTensor::from_trits(1, 1, &[1], Encoding::Base3, Scales::tensor(1.0)).map(Into::into).unwrap();
    let create = || HfDirWriter::create(&path, json!({})).unwrap();
    let mut writer = create();
    writer.tensor("a", &norm).unwrap();
    writer.tensor("b", &trits).unwrap();
    for (name, tensor) in [
        ("a", &norm),
        ("a", &trits),
        ("b", &norm),
        ("b", &trits),
        ("b.trits", &norm),
        ("__metadata__", &norm),
    ] {
        let message = writer.tensor(name, tensor).unwrap_err().to_string();
        assert!(message.contains("already exists"), "{message}");
    }
    for name in ["config.json", "model.safetensors", "../x", "a/b", ""] {
        assert!(writer.write_file(name, b"x").is_err(), "{name}");
    }
    drop(writer);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "an unfinished directory holds no files");
    assert!(create().finish().unwrap_err().to_string().contains("no tensor was added"));
    assert!(HfDirWriter::create(&path, json!([])).is_err());
    let mut writer = create();
    writer.tensor("a", &norm).unwrap();
    writer.finish().unwrap();
    assert!(
        HfDirWriter::create(&path, json!({})).unwrap_err().to_string().contains("already contains a model")
    );
}

#[test]
fn the_shipped_model_packs_without_loss_and_small() {
    // A dense copy of the distributed packed model: every value of its layers is -s, 0 or s.
    let shipped = HfDir::open(trike_testkit::tiny()).unwrap();
    let (_dense, dense) = scratch();
    let mut config = shipped.config().clone();
    config.as_object_mut().unwrap().remove("quantization_config");
    let mut writer = HfDirWriter::create(&dense, config).unwrap();
    for info in shipped.tensors() {
        let values = shipped.load(&info.name).unwrap().to_f32();
        let tensor = DenseTensor::new(info.shape.clone(), DenseData::F32(values)).unwrap();
        writer.tensor(&info.name, &tensor.into()).unwrap();
    }
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        writer.copy_file(shipped.file(file).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    let source = HfDir::open(dense).unwrap();
    let (_dir, path) = scratch();
    let mut writer = HfDirWriter::create(&path, source.config().clone()).unwrap();
    let mut ternary = 0;
    for info in source.tensors() {
        let Tensor::Dense(dense) = source.load(&info.name).unwrap() else {
            panic!("{} is packed", info.name)
        };
        let tensor = match exact_trits(&dense, Encoding::Base3).unwrap() {
            Some(trits) => {
                assert_eq!(trits.dequantize(), dense.to_f32(), "{}", info.name);
                ternary += trits.rows() * trits.cols();
                trits.into()
            }
            None if info.name.contains("embed") => Int8Tensor::quantize(&dense, 64, true).unwrap().into(),
            None => dense.into(),
        };
        writer.tensor(&info.name, &tensor).unwrap();
    }
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        writer.copy_file(source.file(file).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(ternary, 2_359_296);
    let bytes: u64 = std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 700_000, "{bytes} bytes");
    let packed = HfDir::open(&path).unwrap();
    for info in source.tensors().iter().filter(|i| !i.name.contains("embed")) {
        assert_eq!(packed.load(&info.name).unwrap().to_f32(), source.load(&info.name).unwrap().to_f32());
    }
}

//! BitNet checkpoints of HuggingFace: both interpretations of the scale, master weights, and invalid directories.

use std::path::{Path, PathBuf};

use crate::python::{has_package, read_floats, run};
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use trike_format::{HfDir, StoredType, Tensor, TensorSource, absmean_trits};
use trike_trit::{Encoding, Granularity};

/// A stored tensor: name, type, shape, bytes.
type Stored = (&'static str, &'static str, Vec<usize>, Vec<u8>);

fn scratch() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    (dir, path)
}

/// Writes a safetensors file from its tensors.
fn write(path: &Path, file: &str, tensors: &[Stored]) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }));
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(path.join(file), bytes).unwrap();
}

fn open(quantization: &Value, tensors: &[Stored]) -> (TempDir, Result<HfDir, trike_format::FormatError>) {
    let (dir, path) = scratch();
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("config.json"), json!({ "quantization_config": quantization }).to_string())
        .unwrap();
    write(&path, "model.safetensors", tensors);
    let opened = HfDir::open(&path);
    (dir, opened)
}

fn bitnet(key: &str, value: &str) -> Value {
    json!({ "quant_method": "bitnet", key: value })
}

/// Eight rows of three columns, packed by hand: row `r` is in byte row `r mod 2` at shift `2 (r / 2)`.
fn packed() -> Stored {
    let first = [0b10_00_01_10, 0b01_01_00_00, 0b00_10_10_01];
    let second = [0b01_01_01_01, 0b00_00_00_10, 0b10_00_00_00];
    ("a.weight", "U8", vec![2, 3], [first, second].concat())
}

const TRITS: [[f32; 3]; 8] = [
    [1.0, -1.0, 0.0],
    [0.0, 1.0, -1.0],
    [0.0, -1.0, 1.0],
    [0.0, -1.0, -1.0],
    [-1.0, 0.0, 1.0],
    [0.0, -1.0, -1.0],
    [1.0, 0.0, -1.0],
    [0.0, -1.0, 1.0],
];

fn scale(bytes: Vec<u8>, dtype: &'static str) -> Stored {
    ("a.weight_scale", dtype, vec![1], bytes)
}

#[test]
fn a_weight_packed_by_hand_with_both_meanings_of_its_scale() {
    for (packing, factor) in [
        (bitnet("linear_class", "autobitlinear"), 4.0),
        (bitnet("linear_class", "bitlinear"), 0.25),
        (bitnet("quantization_mode", "offline"), 0.25),
        (json!({ "quant_method": "bitnet", "linear_class": null, "modules_to_not_convert": null }), 0.25),
    ] {
        let scales = [
            scale(4f32.to_le_bytes().to_vec(), "F32"),
            scale(f16::from_f32(4.0).to_le_bytes().to_vec(), "F16"),
            scale(bf16::from_f32(4.0).to_le_bytes().to_vec(), "BF16"),
            ("a.weight_scale", "F32", vec![], 4f32.to_le_bytes().to_vec()),
        ];
        for scale in scales {
            let head = ("lm_head.weight", "F32", vec![1, 2], [1f32, 0.5].map(f32::to_le_bytes).concat());
            let bytes = 6 + scale.3.len() as u64;
            let (_dir, opened) = open(&packing, &[packed(), scale, head]);
            let dir = opened.unwrap();
            assert!(!dir.online_ternary() && !dir.is_online_ternary("a.weight"));
            let names: Vec<&str> = dir.tensors().iter().map(|t| t.name.as_str()).collect();
            assert_eq!(names, ["a.weight", "lm_head.weight"], "the scale is not listed apart");
            let info = dir.info("a.weight").unwrap();
            assert_eq!((&info.shape[..], &info.kind, info.bytes), (&[8, 3][..], &StoredType::BitNet, bytes));
            let Tensor::Ternary(tensor) = dir.load("a.weight").unwrap() else { panic!("no trits") };
            assert_eq!(
                (tensor.encoding(), tensor.scales().granularity()),
                (Encoding::TwoBit, Granularity::Tensor)
            );
            assert_eq!(tensor.dequantize(), TRITS.map(|row| row.map(|t| t * factor)).concat(), "{packing}");
            assert_eq!(dir.load("lm_head.weight").unwrap().to_f32(), [1.0, 0.5]);
        }
    }
}

/// Writes directories of packed and of master weights, with the values that transformers' layers would use.
const WRITE: &str = r#"
import json, os, struct, sys
import numpy
rng = numpy.random.default_rng(24)
f4 = numpy.float32

def bf16(values):
    # Round to nearest even on the bits.
    bits = values.astype("<f4").view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")

def widen(bits):
    return (bits.astype(numpy.uint32) << 16).view("<f4")

def directory(name, quantization, tensors):
    os.makedirs(f"{sys.argv[1]}/{name}")
    config = dict(quant_method="bitnet", **quantization)
    with open(f"{sys.argv[1]}/{name}/config.json", "w") as file:
        json.dump(dict(model_type="bitnet", quantization_config=config), file)
    header, data = {}, b""
    for key, (dtype, array) in tensors.items():
        raw = numpy.ascontiguousarray(array).tobytes()
        header[key] = dict(dtype=dtype, shape=list(array.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    head = json.dumps(header).encode()
    with open(f"{sys.argv[1]}/{name}/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + data)

def values(name, key, array):
    array.astype("<f4").tofile(f"{sys.argv[1]}/{name}/{key}.f32")

kinds = {
    "F32": lambda s: (numpy.array([s], "<f4"), f4(s)),
    "F16": lambda s: (numpy.array([s], "<f2"), f4(numpy.float16(s))),
    "BF16": lambda s: (bf16(numpy.array([s])), widen(bf16(numpy.array([s])))[0]),
}
for name, quantization in [
    ("divided", dict(linear_class="bitlinear", quantization_mode="offline", modules_to_not_convert=None)),
    ("multiplied", dict(linear_class="autobitlinear", quantization_mode="offline")),
]:
    tensors, wanted = {}, {}
    for dtype, make in kinds.items():
        for rows, cols in (24, 70), (64, 32), (4, 1):
            key = f"{dtype}.{rows}.weight"
            trits = rng.integers(-1, 2, (rows, cols))
            codes = (trits + 1).astype(numpy.uint8)
            quarter = rows // 4
            tensors[key] = "U8", sum(codes[i * quarter:(i + 1) * quarter] << (2 * i) for i in range(4)).astype(numpy.uint8)
            stored, scale = make(rng.uniform(0.3, 40))
            tensors[key + "_scale"] = dtype, stored
            wanted[key] = trits.astype(f4) * (f4(1) / scale if name == "divided" else scale)
    directory(name, quantization, tensors)
    for key, array in wanted.items():
        values(name, key, array)

tensors, wanted = {}, {}
for key in "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.norm.weight", "lm_head.weight":
    shape = (48,) if "norm" in key else (40, 48)
    bits = bf16(rng.normal(size=shape).astype("<f4") * f4(0.02))
    tensors[key] = "BF16", bits
    w = widen(bits)
    if "proj" in key:
        s = f4(1) / numpy.maximum(f4(numpy.abs(w.astype("<f8")).mean()), f4(1e-5))
        w = numpy.clip(numpy.round(w * s), -1, 1) / s
    wanted[key] = w
directory("online", dict(linear_class="autobitlinear", quantization_mode="online"), tensors)
for key, array in wanted.items():
    values("online", key, array)
"#;

#[test]
fn weights_have_the_values_that_numpy_packed() {
    if !has_package("numpy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    run(WRITE, &[dir.path()]);
    for name in ["divided", "multiplied"] {
        let path = dir.path().join(name);
        let opened = HfDir::open(&path).unwrap();
        assert_eq!(opened.tensors().len(), 9);
        for info in opened.tensors() {
            let tensor = opened.load(&info.name).unwrap();
            assert_eq!(
                tensor.to_f32(),
                read_floats(&path.join(format!("{}.f32", info.name))),
                "{name} {}",
                info.name
            );
        }
    }
    let path = dir.path().join("online");
    let opened = HfDir::open(&path).unwrap();
    assert!(opened.online_ternary());
    for info in opened.tensors() {
        let Tensor::Dense(dense) = opened.load(&info.name).unwrap() else {
            panic!("{} is packed", info.name)
        };
        let ternary = opened.is_online_ternary(&info.name);
        assert_eq!(ternary, info.name.contains("proj"), "{}", info.name);
        let got = if ternary {
            absmean_trits(&dense, Granularity::Tensor, Encoding::Base3).unwrap().dequantize()
        } else {
            dense.to_f32()
        };
        assert_eq!(got, read_floats(&path.join(format!("{}.f32", info.name))), "{}", info.name);
    }
}

#[test]
fn master_weights_follow_modules_to_not_convert() {
    let matrix = |name| (name, "F32", vec![1, 2], [1f32, 0.5].map(f32::to_le_bytes).concat());
    let names = [
        "lm_head.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "m.embed.weight",
    ];
    for (list, ternary) in [
        (Value::Null, [false, true, true, false]),
        (json!([]), [true, true, true, false]),
        (json!(["lm_head", "model.layers.1"]), [false, true, false, false]),
        (json!(["up_proj"]), [true, false, false, false]),
    ] {
        let packing = json!({ "quant_method": "bitnet", "linear_class": "autobitlinear",
                              "quantization_mode": "online", "modules_to_not_convert": list });
        let (_dir, opened) = open(&packing, &names.map(matrix));
        let dir = opened.unwrap();
        assert_eq!(names.map(|name| dir.is_online_ternary(name)), ternary, "{packing}");
        assert!(!dir.is_online_ternary("absent.weight"));
    }
}

#[test]
fn other_classes_modes_and_keys_are_refused_by_name() {
    for (packing, expected) in [
        (bitnet("linear_class", "bitlinear2"), "`linear_class bitlinear2 with quantization_mode offline`"),
        (bitnet("quantization_mode", "sometimes"), "quantization_mode sometimes"),
        (bitnet("quantization_mode", "online"), "linear_class bitlinear with quantization_mode online"),
        (json!({ "quant_method": "bitnet", "linear_class": 3 }), "linear_class (not a string)"),
        (json!({ "quant_method": "bitnet", "use_rms_norm": true }), "use_rms_norm true"),
        (bitnet("rotation", "hadamard"), "`quantization_config.rotation \"hadamard\"`"),
        (bitnet("modules_to_not_convert", "lm_head"), "expected a list of names, got \"lm_head\""),
        (
            json!({ "quant_method": "bitnet", "modules_to_not_convert": ["layers.*"] }),
            "the pattern \"layers.*\"",
        ),
    ] {
        let (_dir, opened) = open(&packing, &[packed(), scale(vec![0; 4], "F32")]);
        let message = opened.unwrap_err().to_string();
        assert!(
            message.contains(expected) && message.contains("config.json"),
            "expected {expected}, got {message}"
        );
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let good = || scale(4f32.to_le_bytes().to_vec(), "F32");
    let weight = |shape: Vec<usize>, n| ("a.weight", "U8", shape, vec![0x55; n]);
    let offline = json!({ "quant_method": "bitnet" });
    let online =
        json!({ "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online" });
    let ordinary = json!({ "quant_method": "bitnet", "modules_to_not_convert": ["a"] });
    let dense = ("a.weight", "F32", vec![1, 1], vec![0; 4]);
    for (packing, tensors, expected) in [
        (&offline, vec![packed()], "tensor `a.weight_scale`: expected the tensor, got no such tensor"),
        (&offline, vec![good()], "`a.weight` as U8, four rows per byte, got no such tensor"),
        (&offline, vec![dense, good()], "`a.weight` as U8, four rows per byte, got F32 [1, 1]"),
        (&offline, vec![weight(vec![6], 6), good()], "[rows / 4, cols], each at least 1, got shape [6]"),
        (&offline, vec![weight(vec![0, 3], 0), good()], "got shape [0, 3]"),
        (&offline, vec![weight(vec![2, 3, 1], 6), good()], "got shape [2, 3, 1]"),
        (
            &offline,
            vec![packed(), ("a.weight_scale", "F32", vec![2], vec![0; 8])],
            "as one F32, F16 or BF16, got F32 [2]",
        ),
        (&offline, vec![packed(), ("a.weight_scale", "I32", vec![1], vec![0; 4])], "got I32 [1]"),
        (&online, vec![packed()], "expected master weights, since quantization_mode is online"),
        (&ordinary, vec![packed(), good()], "expected dense weights, since modules_to_not_convert"),
    ] {
        let (_dir, opened) = open(packing, &tensors);
        let message = opened.unwrap_err().to_string();
        assert!(
            message.contains(expected) && message.contains("`a.weight"),
            "expected {expected}, got {message}"
        );
    }

    let inverse = [0f32, f32::INFINITY, f32::NAN, f32::from_bits(1)];
    let multiplied = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    for (class, scales) in [("bitlinear", &inverse[..]), ("autobitlinear", &multiplied[..])] {
        for value in scales {
            let tensors = [packed(), scale(value.to_le_bytes().to_vec(), "F32")];
            let (_dir, opened) = open(&bitnet("linear_class", class), &tensors);
            let message = opened.unwrap().load("a.weight").unwrap_err().to_string();
            assert!(message.contains(&format!("its weight_scale is {value}")), "{message}");
        }
    }
    let (_dir, opened) =
        open(&offline, &[("a.weight", "U8", vec![2, 3], vec![0x55, 0x57, 0x55, 0x55, 0x55, 0x55]), good()]);
    let message = opened.unwrap().load("a.weight").unwrap_err().to_string();
    assert!(message.contains("`a.weight`") && message.contains('3'), "{message}");
}

#[test]
fn a_weight_and_its_scale_may_lie_in_different_shards() {
    let (_dir, path) = scratch();
    std::fs::create_dir(&path).unwrap();
    std::fs::write(
        path.join("config.json"),
        json!({ "quantization_config": { "quant_method": "bitnet" } }).to_string(),
    )
    .unwrap();
    write(&path, "a.safetensors", &[packed()]);
    write(&path, "b.safetensors", &[scale(2f32.to_le_bytes().to_vec(), "F32")]);
    let index = json!({ "weight_map": { "a.weight": "a.safetensors", "a.weight_scale": "b.safetensors" } });
    std::fs::write(path.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let dir = HfDir::open(&path).unwrap();
    assert_eq!(dir.load("a.weight").unwrap().to_f32(), TRITS.map(|row| row.map(|t| t * 0.5)).concat());
}

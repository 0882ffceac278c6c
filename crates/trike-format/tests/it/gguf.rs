//! GGUF: round trips of every type, `Q2_0` against an independent decoder, and invalid files.

use std::path::PathBuf;

use crate::common::{RawGguf, q2_0_blocks, q2_0_values, string};
use half::{bf16, f16};
use tempfile::TempDir;
use trike_format::{
    DenseData, DenseTensor, FormatError, Gguf, GgufType, GgufWriter, Int8Tensor, MetaArray, MetaValue,
    StoredType, StringArray, Tensor, TensorSource,
};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Hadamard, ScaleValues, Scales, TritTensor};

fn scratch() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    (dir, path)
}

fn open(bytes: &[u8]) -> Result<Gguf, FormatError> {
    let (_dir, path) = scratch();
    std::fs::write(&path, bytes).unwrap();
    Gguf::open(&path)
}

fn refusal(raw: &RawGguf) -> String {
    let message = open(&raw.bytes()).unwrap_err().to_string();
    assert!(message.contains("model.gguf"), "the message names no file: {message}");
    message
}

/// Random trits with random scales that are exact in f16.
fn ternary(
    rng: &mut Rng,
    rows: usize,
    cols: usize,
    granularity: Granularity,
    encoding: Encoding,
) -> TritTensor {
    let trits = rng.trits(rows * cols, 0.7);
    let n = granularity.count(rows, cols).unwrap();
    let scales: Vec<f16> = (0..n).map(|_| f16::from_f32(rng.normal())).collect();
    TritTensor::from_trits(rows, cols, &trits, encoding, Scales::new(granularity, scales, None)).unwrap()
}

#[test]
fn every_type_comes_back_bit_for_bit() {
    let mut rng = Rng::new(11);
    let floats = rng.normals(3 * 512);
    let dense = |data| Tensor::from(DenseTensor::new(vec![3, 512], data).unwrap());
    let codes: Vec<i8> = (0..3 * 512).map(|_| rng.next_u64() as i8).collect();
    let scales: Vec<f16> = (0..3 * 16).map(|_| f16::from_f32(rng.normal())).collect();
    let g256 = Granularity::Group(GroupSize::G256);
    let cases = [
        (GgufType::F32, dense(DenseData::F32(floats.clone()))),
        (GgufType::F16, dense(DenseData::F16(floats.iter().map(|&v| f16::from_f32(v)).collect()))),
        (GgufType::Bf16, dense(DenseData::Bf16(floats.iter().map(|&v| bf16::from_f32(v)).collect()))),
        (GgufType::Q8_0, Int8Tensor::new(3, 512, 32, codes, scales.into()).unwrap().into()),
        (GgufType::Tq1_0, ternary(&mut rng, 3, 512, g256, Encoding::Base3).into()),
        (GgufType::Tq2_0, ternary(&mut rng, 5, 768, g256, Encoding::TwoBit).into()),
        (
            GgufType::Q2_0G64,
            ternary(&mut rng, 9, 192, Granularity::Group(GroupSize::G64), Encoding::TwoBit).into(),
        ),
        (
            GgufType::Q2_0G128,
            ternary(&mut rng, 9, 384, Granularity::Group(GroupSize::G128), Encoding::TwoBit).into(),
        ),
    ];
    for q2_0 in [GgufType::Q2_0G64, GgufType::Q2_0G128] {
        let (_dir, path) = scratch();
        let mut writer = GgufWriter::create(&path).unwrap();
        let taken = |kind: GgufType| kind.id() != 42 || kind == q2_0;
        for (kind, tensor) in cases.iter().filter(|(kind, _)| taken(*kind)) {
            writer.tensor(&format!("{kind}.weight"), tensor, *kind).unwrap();
        }
        writer.finish().unwrap();
        let file = Gguf::open(&path).unwrap();
        assert_eq!(file.tensors().len(), 7);
        for (kind, tensor) in cases.iter().filter(|(kind, _)| taken(*kind)) {
            let name = format!("{kind}.weight");
            let info = file.info(&name).unwrap();
            assert_eq!((&info.shape, &info.kind), (&tensor.shape(), &StoredType::from(*kind)));
            assert_eq!(file.load(&name).unwrap(), *tensor, "{kind}");
        }
    }
}

#[test]
fn a_coarse_scale_is_repeated_and_values_stay() {
    let mut rng = Rng::new(12);
    let group = Granularity::Group;
    for granularity in [Granularity::Tensor, Granularity::Row, group(GroupSize::G256), group(GroupSize::G128)]
    {
        for kind in [GgufType::Tq1_0, GgufType::Tq2_0, GgufType::Q2_0G64, GgufType::Q2_0G128] {
            if granularity == group(GroupSize::G128) && kind.block() == 256 {
                continue;
            }
            for encoding in Encoding::ALL {
                let tensor = ternary(&mut rng, 9, 512, granularity, encoding);
                let (_dir, path) = scratch();
                let mut writer = GgufWriter::create(&path).unwrap();
                writer.tensor("w", &tensor.clone().into(), kind).unwrap();
                writer.finish().unwrap();
                let back = Gguf::open(&path).unwrap().load("w").unwrap();
                assert_eq!(back.to_f32(), tensor.dequantize(), "{granularity} {kind} {encoding}");
            }
        }
    }
    // An int8 row scale is also repeated for Q8_0.
    let codes: Vec<i8> = (0..128).map(|i| i as i8).collect();
    let int8 = Int8Tensor::new(2, 64, 64, codes, ScaleValues::F32(vec![0.5, 0.25])).unwrap();
    let (_dir, path) = scratch();
    let mut writer = GgufWriter::create(&path).unwrap();
    writer.tensor("w", &int8.clone().into(), GgufType::Q8_0).unwrap();
    writer.finish().unwrap();
    assert_eq!(Gguf::open(&path).unwrap().load("w").unwrap().to_f32(), int8.dequantize());
}

#[test]
fn q2_0_in_both_sizes_against_an_independent_decoder() {
    let mut rng = Rng::new(13);
    for group in [64usize, 128] {
        for top in [3, 4] {
            // With `top` 4, some codes are 3, which means +2 d.
            let codes: Vec<u8> = (0..20 * 512).map(|_| rng.below(top) as u8).collect();
            let bits: Vec<u16> = (0..codes.len() / group).map(|_| 0x2E00 + rng.below(2048) as u16).collect();
            let data = q2_0_blocks(&codes, group, |block| bits[block]);
            let other = q2_0_blocks(&codes[..4096], group, |block| bits[block]);
            let raw = RawGguf::default()
                .tensor("a", &[512, 20], 42, &data)
                .tensor("norm", &[4], 0, &[0; 16])
                .tensor("b", &[128, 32], 42, &other);
            let file = open(&raw.bytes()).unwrap();
            assert_eq!(file.info("a").unwrap().kind.to_string(), format!("Q2_0 g{group}"));
            for (name, data) in [("a", &data), ("b", &other)] {
                let tensor = file.load(name).unwrap();
                assert_eq!(matches!(tensor, Tensor::Dense(_)), top == 4);
                assert_eq!(tensor.to_f32(), q2_0_values(data, group), "group {group}, codes below {top}");
            }
        }
    }
}

#[test]
fn what_the_writer_writes_as_q2_0_the_independent_decoder_reads() {
    let mut rng = Rng::new(14);
    for (kind, size) in [(GgufType::Q2_0G64, GroupSize::G64), (GgufType::Q2_0G128, GroupSize::G128)] {
        let tensor = ternary(&mut rng, 12, 512, Granularity::Group(size), Encoding::Base3);
        let (_dir, path) = scratch();
        let mut writer = GgufWriter::create(&path).unwrap();
        writer.tensor("w", &tensor.clone().into(), kind).unwrap();
        writer.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let len = kind.block_bytes() * 12 * 512 / kind.block();
        let start = bytes.len() - len.next_multiple_of(32);
        assert_eq!(q2_0_values(&bytes[start..start + len], kind.block()), tensor.dequantize());
    }
}

#[test]
fn a_file_cut_short_in_its_last_tensor_is_called_so_for_every_type() {
    let mut rng = Rng::new(16);
    let g = |size| Granularity::Group(size);
    for (kind, group) in [
        (GgufType::Tq1_0, GroupSize::G256),
        (GgufType::Tq2_0, GroupSize::G256),
        (GgufType::Q2_0G64, GroupSize::G64),
        (GgufType::Q2_0G128, GroupSize::G128),
    ] {
        for tensors in [1, 2] {
            let (_dir, path) = scratch();
            let mut writer = GgufWriter::create(&path).unwrap();
            for i in 0..tensors {
                let tensor = ternary(&mut rng, 16, 512, g(group), Encoding::TwoBit);
                writer.tensor(&format!("w{i}"), &tensor.into(), kind).unwrap();
            }
            writer.finish().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            for cut in [33, 100, 1000] {
                let error = open(&bytes[..bytes.len() - cut]).expect_err("it is cut");
                let last = format!("w{}", tensors - 1);
                assert!(matches!(error, FormatError::Truncated { .. }), "{kind:?} -{cut}: {error}");
                assert!(error.to_string().contains(&last), "{kind:?} -{cut}: {error}");
            }
        }
    }
}

#[test]
fn the_block_size_of_q2_0_must_be_certain() {
    // One row of 128: 36 and 34 bytes, both padded to 64.
    let tiny = RawGguf::default().tensor("w", &[128], 42, &q2_0_blocks(&[1; 128], 64, |_| 0)[..34]);
    let file = open(&tiny.bytes()).unwrap();
    assert_eq!(file.tensors()[0].kind, StoredType::Unsupported("Q2_0".to_owned()));
    let message = file.load("w").unwrap_err().to_string();
    assert!(message.contains("`w`") && message.contains("fit both"), "{message}");

    // A gap that neither block size explains.
    let gap = RawGguf::default().tensor("w", &[4096], 42, &[0; 4096 / 64 * 18 + 320]).tensor(
        "v",
        &[4],
        0,
        &[0; 16],
    );
    let message = open(&gap.bytes()).unwrap().load("w").unwrap_err().to_string();
    assert!(message.contains("fit neither"), "{message}");

    // Two tensors that disagree.
    let mixed = RawGguf::default().tensor("w", &[4096], 42, &[0; 4096 / 64 * 18]).tensor(
        "v",
        &[4096],
        42,
        &[0; 4096 / 128 * 34],
    );
    let file = open(&mixed.bytes()).unwrap();
    assert!(file.load("w").is_err() && file.load("v").is_err());

    // The writer does not produce such files.
    let (_dir, path) = scratch();
    let mut rng = Rng::new(15);
    let small = Tensor::from(ternary(&mut rng, 1, 128, Granularity::Tensor, Encoding::TwoBit));
    let mut writer = GgufWriter::create(&path).unwrap();
    writer.tensor("w", &small, GgufType::Q2_0G64).unwrap();
    let message = writer.finish().unwrap_err().to_string();
    assert!(message.contains("so small") && !path.exists(), "{message}");
    let mut writer = GgufWriter::create(&path).unwrap();
    writer.tensor("w", &small, GgufType::Q2_0G64).unwrap();
    writer.tensor("v", &small, GgufType::Q2_0G128).unwrap();
    assert!(writer.finish().unwrap_err().to_string().contains("mixes"));
}

#[test]
fn metadata_of_every_type_comes_back_in_order() {
    let strings: StringArray = ["\u{2581}a", "", "z"].into_iter().collect();
    let values: Vec<(&str, MetaValue)> = vec![
        ("general.architecture", "llama".into()),
        ("u8", 200u8.into()),
        ("i8", (-3i8).into()),
        ("u16", 60_000u16.into()),
        ("i16", (-300i16).into()),
        ("u32", 4_000_000_000u32.into()),
        ("i32", (-70_000i32).into()),
        ("f32", 0.1f32.into()),
        ("bool", true.into()),
        ("u64", u64::MAX.into()),
        ("i64", i64::MIN.into()),
        ("f64", 0.1f64.into()),
        ("strings", strings.clone().into()),
        ("f32s", vec![0.5f32, -1.0].into()),
        ("i32s", vec![1i32, -1].into()),
        ("bools", vec![true, false].into()),
        ("none", MetaValue::Array(MetaArray::U64(vec![]))),
        (
            "nested",
            MetaValue::Array(MetaArray::Array(vec![
                MetaArray::U8(vec![1, 2]),
                MetaArray::Str(strings.clone()),
            ])),
        ),
    ];
    let (_dir, path) = scratch();
    let mut writer = GgufWriter::create(&path).unwrap();
    for (key, value) in &values {
        writer.metadata(key, value.clone()).unwrap();
    }
    assert!(writer.metadata("u8", 1u8).is_err());
    assert!(writer.metadata("general.alignment", 64u32).is_err());
    writer.finish().unwrap();

    let file = Gguf::open(&path).unwrap();
    let got: Vec<(&str, MetaValue)> = file.metadata().iter().map(|(k, v)| (k, v.clone())).collect();
    assert_eq!(got, values);
    assert_eq!(file.version(), 3);
    assert_eq!(file.u32("u8").unwrap(), Some(200));
    assert_eq!(file.u32("absent").unwrap(), None);
    assert_eq!(file.f32("f64").unwrap(), Some(0.1));
    assert_eq!(file.bool("bool").unwrap(), Some(true));
    assert_eq!(file.strings("strings").unwrap(), Some(&strings));
    assert_eq!(file.f32s("f32s").unwrap(), Some(&[0.5, -1.0][..]));
    assert_eq!(file.i64s("i32s").unwrap(), Some(vec![1, -1]));
    let message = file.u32("i8").unwrap_err().to_string();
    assert!(message.contains("`i8`") && message.contains("an integer from 0"), "{message}");
    assert!(file.missing_key("llama.block_count").to_string().contains("`llama.block_count`"));
}

/// A file like llama.cpp's vocabularies, with keys and no tensors. A vocabulary of llama.cpp itself is tested in `trike-llm`, which
/// knows its content.
#[test]
fn vocabularies_of_llama_cpp_open() {
    const TOKENS: usize = 32_000;
    let array = |element: u32, values: Vec<u8>| {
        [&element.to_le_bytes()[..], &(TOKENS as u64).to_le_bytes(), &values].concat()
    };
    let tokens: Vec<u8> = (0..TOKENS).flat_map(|id| string(&format!("\u{2581}token{id}"))).collect();
    let scores: Vec<u8> = (0..TOKENS).flat_map(|id| (-(id as f32)).to_le_bytes()).collect();
    let types: Vec<u8> = (0..TOKENS).flat_map(|_| 1_i32.to_le_bytes()).collect();
    let file = RawGguf::default()
        .key("general.architecture", 8, &string("llama"))
        .key("tokenizer.ggml.model", 8, &string("llama"))
        .key("tokenizer.ggml.tokens", 9, &array(8, tokens))
        .key("tokenizer.ggml.scores", 9, &array(6, scores))
        .key("tokenizer.ggml.token_type", 9, &array(5, types))
        .key("tokenizer.ggml.bos_token_id", 4, &1_u32.to_le_bytes());
    let file = open(&file.bytes()).unwrap();
    assert_eq!(file.str("tokenizer.ggml.model").unwrap(), Some("llama"));
    let tokens: Vec<&str> = file.strings("tokenizer.ggml.tokens").unwrap().unwrap().iter().collect();
    assert_eq!((tokens.len(), tokens[TOKENS - 1]), (TOKENS, "\u{2581}token31999"));
    let scores = file.f32s("tokenizer.ggml.scores").unwrap().unwrap();
    assert_eq!((scores.len(), scores[TOKENS - 1]), (TOKENS, -31_999.0));
    assert_eq!(file.i64s("tokenizer.ggml.token_type").unwrap(), Some(vec![1; TOKENS]));
    assert!(file.tensors().is_empty());
}

#[test]
fn transforms_are_refused_by_the_name_of_their_key() {
    for key in [
        "prism.hadamard.block_size",
        "llama.rotation.kind",
        "bitnet.quantization.scheme",
        "general.quantization_config",
    ] {
        let message = refusal(&RawGguf::default().key(key, 4, &1u32.to_le_bytes()));
        assert!(message.contains(&format!("`{key}`")) && message.contains("not implemented"), "{message}");
    }
    for key in ["general.quantization_version", "general.file_type", "tokenizer.rotation"] {
        assert!(open(&RawGguf::default().key(key, 4, &1u32.to_le_bytes()).bytes()).is_ok(), "{key}");
    }
}

#[test]
fn versions_and_byte_orders() {
    for (version, what) in [
        (1, "GGUF version 1"),
        (4, "GGUF version 4"),
        (3u32.swap_bytes(), "big-endian GGUF"),
        (2u32.swap_bytes(), "big-endian GGUF"),
    ] {
        let message = refusal(&RawGguf { version, ..RawGguf::default() });
        assert!(message.contains(what), "{message}");
    }
    assert_eq!(open(&RawGguf { version: 2, ..RawGguf::default() }.bytes()).unwrap().version(), 2);
    assert!(refusal(&RawGguf { magic: *b"GGUX", ..RawGguf::default() }).contains("magic"));
}

#[test]
fn headers_that_contradict_themselves() {
    let raw = RawGguf::default;
    let u64_max = u64::MAX.to_le_bytes();
    let array = |type_id: u32, n: u64| [&type_id.to_le_bytes()[..], &n.to_le_bytes()].concat();
    let nested = [array(9, 1), array(9, 1), array(0, 0)].concat();
    let cases: Vec<(RawGguf, &str)> = vec![
        (
            RawGguf { count: u64::MAX, ..raw() },
            "the number of tensors is 18446744073709551615: expected at most",
        ),
        (RawGguf { count: 100_001, ..raw() }, "expected at most 100000"),
        (RawGguf { keys: 65_537, ..raw() }, "expected at most 65536"),
        (RawGguf { keys: 1, ..raw() }, "truncated"),
        (raw().key("k", 8, &u64_max), "expected at most"),
        (raw().key("k", 8, &1000u64.to_le_bytes()), "truncated at k"),
        (raw().key("k", 13, &[]), "the value type of `k`"),
        (raw().key("k", 9, &array(13, 1)), "the element type of `k`"),
        (raw().key("k", 9, &array(4, 1 << 25)), "the length of `k` is 33554432: expected at most"),
        (raw().key("k", 9, &array(4, 1 << 20)), "truncated at k"),
        (raw().key("k", 9, &array(8, 1 << 20)), "truncated at k"),
        (raw().key("k", 9, &nested), "the nesting of `k` is 3: expected at most 2"),
        (raw().key("k", 9, &array(9, 65_537)), "the number of inner arrays of `k`"),
        (raw().key("k", 7, &[2]), "a bool, 0 or 1"),
        (raw().key("k", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xFF]), "UTF-8"),
        (raw().key("k", 0, &[1]).key("k", 0, &[1]), "`k` twice"),
        (raw().key("general.alignment", 4, &48u32.to_le_bytes()), "a power of two"),
        (raw().key("general.alignment", 4, &0u32.to_le_bytes()), "a power of two"),
        (raw().key("general.alignment", 8, &string("32")), "got string"),
        (raw().info("w", &[], 0, 0), "1 to 4 dimensions, got 0"),
        (raw().info("w", &[1, 1, 1, 1, 1], 0, 0), "1 to 4 dimensions, got 5"),
        (raw().info("w", &[4, 0], 0, 0), "dimensions of at least 1"),
        (raw().info("w", &[u64::MAX, u64::MAX], 0, 0), "addressable"),
        (raw().info("w", &[1 << 40, 1 << 40], 0, 0), "addressable"),
        (raw().info(&"w".repeat(257), &[4], 0, 0), "expected at most 256"),
        (raw().info("w", &[4], 0, 16), "a multiple of 32, got 16"),
        (raw().info("w", &[4], 0, 1 << 40), "truncated at the data of tensor `w`"),
        (
            raw().tensor("w", &[64], 0, &[0; 128]),
            "truncated at the data of tensor `w`: expected 256 bytes, got 128",
        ),
        (raw().tensor("w", &[255], 35, &[0; 66]), "a multiple of 256 weights for TQ2_0, got shape [255]"),
        (raw().tensor("w", &[16], 0, &[0; 64]).info("v", &[4], 0, 32), "`w`: expected 64 bytes of F32"),
        (raw().tensor("w", &[4], 0, &[0; 16]).info("v", &[4], 0, 0), "the tensors overlap"),
        (raw().tensor("w", &[4], 0, &[0; 16]).tensor("w", &[4], 0, &[0; 16]), "the name twice"),
    ];
    for (raw, expected) in cases {
        let message = refusal(&raw);
        assert!(message.contains(expected), "expected {expected}, got {message}");
    }
}

#[test]
fn numbers_that_are_not_usable_are_found_when_the_tensor_is_loaded() {
    let mut tq2 = vec![0x55; 132];
    tq2[64..66].copy_from_slice(&[0, 0x3C]);
    tq2[130..].copy_from_slice(&[0, 0x7E]); // NaN
    let mut code3 = tq2.clone();
    code3[130..].copy_from_slice(&[0, 0x3C]);
    code3[70] = 0xFF;
    let raw = RawGguf::default()
        .tensor("nan_scale", &[256, 2], 35, &tq2)
        .tensor("code3", &[512], 35, &code3)
        .tensor("nan", &[2], 0, &[0, 0, 0, 0, 0, 0, 0xC0, 0x7F])
        .tensor("nan8", &[32], 8, &[&[0, 0x7C][..], &[0; 32]].concat());
    let file = open(&raw.bytes()).unwrap();
    for (name, what) in [
        ("nan_scale", "scale 1 is NaN"),
        ("code3", "block 1 has code 3"),
        ("nan", "weight 1 is NaN"),
        ("nan8", "scale 0"),
    ] {
        let message = file.load(name).unwrap_err().to_string();
        assert!(message.contains(&format!("`{name}`")) && message.contains(what), "{message}");
        assert!(message.contains("model.gguf") && message.contains("download or convert"), "{message}");
    }
}

#[test]
fn what_a_type_cannot_hold_is_an_error() {
    let mut rng = Rng::new(16);
    let g = |size| Granularity::Group(size);
    let trits =
        |rng: &mut Rng, cols, granularity| Tensor::from(ternary(rng, 2, cols, granularity, Encoding::Planes));
    let scaled = |s: f32| {
        TritTensor::from_trits(1, 256, &[1; 256], Encoding::TwoBit, Scales::tensor(s))
            .map(Tensor::from)
            .unwrap()
    };
    let two_planes = TritTensor::from_planes(
        1,
        256,
        &[&[1; 256], &[0; 256]],
        Encoding::TwoBit,
        Coupling::Tied,
        Scales::tensor(1.0),
    );
    let means = Scales::new(Granularity::Tensor, vec![1.0], Some(vec![0.5].into()));
    let with_means = TritTensor::from_trits(1, 256, &[1; 256], Encoding::TwoBit, means);
    let turned = TritTensor::from_trits(1, 256, &[1; 256], Encoding::TwoBit, Scales::tensor(1.0))
        .and_then(|tensor| tensor.with_rotation(Hadamard::largest(256, 64)));
    let dense = Tensor::from(DenseTensor::new(vec![1, 256], DenseData::F32(rng.normals(256))).unwrap());
    let cases = [
        (
            GgufType::Tq2_0,
            trits(&mut rng, 384, Granularity::Row),
            "a multiple of 256 weights, got rows of 384",
        ),
        (GgufType::Tq1_0, trits(&mut rng, 512, g(GroupSize::G128)), "one scale for 256 weights"),
        (GgufType::Q2_0G128, trits(&mut rng, 512, g(GroupSize::G64)), "one scale for 128 weights"),
        (GgufType::Q2_0G64, trits(&mut rng, 512, g(GroupSize::G32)), "one scale for 64 weights"),
        (GgufType::Tq2_0, scaled(0.1), "scales that are f16 numbers, got 0.1"),
        (GgufType::Tq2_0, scaled(70_000.0), "scales that are f16 numbers, got 70000"),
        (GgufType::Tq2_0, two_planes.unwrap().into(), "one plane, got 2 planes"),
        (GgufType::Tq2_0, with_means.unwrap().into(), "no means"),
        (
            GgufType::Tq2_0,
            turned.unwrap().into(),
            "no rotation of the inputs, got a rotation with block size 64; write a Trike directory",
        ),
        (GgufType::Tq2_0, dense.clone(), "got dense weights; quantize it first"),
        (GgufType::Q8_0, dense.clone(), "expected int8 codes, got dense weights"),
        (GgufType::F16, dense.clone(), "values that are F16 numbers"),
        (GgufType::Bf16, dense.clone(), "values that are BF16 numbers"),
    ];
    for (kind, tensor, expected) in cases {
        let (_dir, path) = scratch();
        let mut writer = GgufWriter::create(&path).unwrap();
        let message = writer.tensor("w", &tensor, kind).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("`w`"), "expected {expected}, got {message}");
        assert!(message.contains(&format!("{kind} cannot hold")), "{message}");
    }
    // Groups smaller than a block are valid if their scales agree.
    let even = Scales::new(g(GroupSize::G32), vec![f16::ONE; 8], None);
    let even = TritTensor::from_trits(1, 256, &[1; 256], Encoding::TwoBit, even).unwrap();
    let (_dir, path) = scratch();
    let mut writer = GgufWriter::create(&path).unwrap();
    writer.tensor("w", &even.into(), GgufType::Tq2_0).unwrap();
    let name = "n".repeat(64);
    assert!(
        writer
            .tensor(&name, &dense, GgufType::F32)
            .unwrap_err()
            .to_string()
            .contains("64 bytes: expected at most 63")
    );
    assert!(writer.tensor("w", &dense, GgufType::F32).unwrap_err().to_string().contains("already exists"));
}

#[test]
fn a_file_of_two_gigabytes_opens_without_reading_it() {
    // A sparse file: reading it completely would take much memory and time, opening it must not.
    let rows = 8_000_000u64;
    let raw = RawGguf::default().info("w", &[256, rows], 35, 0);
    let (_dir, path) = scratch();
    let header = raw.header();
    std::fs::write(&path, &header).unwrap();
    let len = header.len() as u64 + rows * 66;
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len * 4).unwrap();
    let file = Gguf::open(&path).unwrap();
    assert!(len * 4 > 2_000_000_000);
    assert_eq!(file.tensors()[0].bytes, rows * 66);
}

//! GGUF against independent implementations: the `gguf` package from PyPI in both directions, and a few lines of numpy for the
//! types that it lacks.

use crate::common::RawGguf;
use crate::python::{has_package, read_floats, run};
use half::f16;
use trike_format::{Gguf, GgufType, GgufWriter, StoredType, Tensor, TensorSource};
use trike_testkit::Rng;
use trike_trit::{Encoding, Granularity, GroupSize, Scales, TritTensor};

const ROWS: usize = 24;
const COLS: usize = 512;
const KINDS: [(GgufType, &str); 2] = [(GgufType::Tq1_0, "TQ1_0"), (GgufType::Tq2_0, "TQ2_0")];

/// Reads every tensor of a file and writes its values as raw f32 to `<name>.f32`.
const READ: &str = r#"
import sys, numpy, gguf
reader = gguf.GGUFReader(sys.argv[1])
assert reader.get_field("general.architecture").contents() == "llama"
assert list(reader.get_field("tokenizer.ggml.tokens").contents()) == ["<s>", "\u2581a", ""]
for t in reader.tensors:
    assert list(t.shape) == [512, 24], t.shape
    values = gguf.quants.dequantize(t.data, t.tensor_type)
    values.astype("<f4").tofile(f"{sys.argv[2]}/{t.name}.f32")
"#;

/// Quantizes raw f32 values to both types and writes a file.
const WRITE: &str = r#"
import sys, numpy, gguf
values = numpy.fromfile(f"{sys.argv[2]}/values.f32", dtype="<f4").reshape(24, 512)
writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_block_count(7)
writer.add_token_list(["<s>", "\u2581a", ""])
for kind in (gguf.GGMLQuantizationType.TQ1_0, gguf.GGMLQuantizationType.TQ2_0):
    writer.add_tensor(kind.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
writer.add_tensor("norm", values[0])
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"#;

/// Fills blocks with random bytes and finite scales, writes them to a file, and dequantizes them.
const BLOCKS: &str = r#"
import sys, numpy, gguf
rng = numpy.random.default_rng(22)
Type = gguf.GGMLQuantizationType
# Where the f16 numbers of a block lie.
halves = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
}
writer = gguf.GGUFWriter(sys.argv[1], "llama")
for kind, places in halves.items():
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (24 * 512 // weights, size), dtype=numpy.uint8)
    for at in places:
        values = rng.normal(size=(len(blocks), 1)).astype("<f2")
        blocks[:, at:at + 2] = values.view(numpy.uint8)
    data = blocks.reshape(24, -1)
    writer.add_tensor(kind.name, data, raw_dtype=kind)
    gguf.quants.dequantize(data, kind).astype("<f4").tofile(f"{sys.argv[2]}/{kind.name}.f32")
    # Blocks that the package makes of real numbers, where it can.
    try:
        data = gguf.quants.quantize(rng.normal(size=(24, 512)).astype("<f4"), kind)
    except NotImplementedError:
        continue
    writer.add_tensor(kind.name + "_quantized", data, raw_dtype=kind)
    gguf.quants.dequantize(data, kind).astype("<f4").tofile(f"{sys.argv[2]}/{kind.name}_quantized.f32")
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"#;

/// Writes a model split into three files.
const SPLIT: &str = r#"
import sys, numpy, gguf
writer = gguf.GGUFWriter(sys.argv[1], "llama", split_max_tensors=2)
writer.add_block_count(7)
for i in range(5):
    writer.add_tensor(f"t{i}", numpy.arange(64, dtype="<f4").reshape(2, 32) + i)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"#;

/// Packs random trits as the types of the forks, from the format description alone: `<type>.bin` and `<type>.f32`.
const PACK: &str = r#"
import sys, numpy
rng = numpy.random.default_rng(23)
rows, cols = 6, 640
def write(name, data, values):
    data.astype(numpy.uint8).tofile(f"{sys.argv[1]}/{name}.bin")
    values.astype("<f4").tofile(f"{sys.argv[1]}/{name}.f32")

# I2_S: byte p of 32 holds elements p, p + 32, p + 64, p + 96 at shifts 6, 4, 2, 0; one f32 scale.
trits = rng.integers(-1, 2, (rows, cols))
scale = numpy.float32(0.0173)
blocks = (trits + 1).reshape(-1, 4, 32)
data = sum(blocks[:, k] << (6 - 2 * k) for k in range(4)).astype(numpy.uint8).reshape(-1)
trailer = numpy.zeros(32, numpy.uint8)
trailer[:4] = numpy.array([scale], "<f4").view(numpy.uint8)
trailer[4:] = 0xCC
write("I2_S", numpy.concatenate([data, trailer]), trits * scale)

# PQ2_0: f16 d, then element j at byte j / 4, shift 2 (j mod 4); code 3 is +2 d.
for name, top in ("PQ2_0", 2), ("PQ2_0_dense", 3):
    codes = rng.integers(-1, top, (rows * cols // 128, 128))
    d = rng.normal(size=(len(codes), 1)).astype("<f2")
    fours = (codes + 1).reshape(-1, 32, 4)
    data = sum(fours[:, :, k] << (2 * k) for k in range(4)).astype(numpy.uint8)
    write(name, numpy.concatenate([d.view(numpy.uint8), data], axis=1), codes * d.astype("<f4"))

# PTQ1_0: stages of 16, 8 and 2 bytes; byte l of a stage of n holds the elements l + n t, the first one most
# significant; a byte is its number in base 3 (five digits, of which the last stage has four) times 256 / 243, rounded up.
trits = rng.integers(-1, 2, (rows * cols // 128, 128))
d = rng.normal(size=(len(trits), 1)).astype("<f2")
parts, start = [], 0
for lanes, count in (16, 5), (8, 5), (2, 4):
    digits = (trits[:, start:start + lanes * count] + 1).reshape(-1, count, lanes)
    number = sum(digits[:, t] * 3 ** (4 - t) for t in range(count))
    parts.append(((number * 256 + 242) // 243).astype(numpy.uint8))
    start += lanes * count
write("PTQ1_0", numpy.concatenate(parts + [d.view(numpy.uint8)], axis=1), trits * d.astype("<f4"))
"#;

/// Every block has a nonzero trit, since the package takes the scale from the largest magnitude.
fn ternary() -> TritTensor {
    let mut rng = Rng::new(21);
    let mut trits = rng.trits(ROWS * COLS, 0.7);
    trits.iter_mut().step_by(256).for_each(|t| *t = 1);
    let scales: Vec<f16> = (0..ROWS * COLS / 256).map(|_| f16::from_f32(0.01 + rng.f32_unit())).collect();
    let scales = Scales::new(Granularity::Group(GroupSize::G256), scales, None);
    TritTensor::from_trits(ROWS, COLS, &trits, Encoding::Planes, scales).unwrap()
}

#[test]
fn the_package_reads_what_trike_writes() {
    if !has_package("gguf") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let tensor = ternary();
    let mut writer = GgufWriter::create(&path).unwrap();
    writer.metadata("general.architecture", "llama").unwrap();
    let tokens: trike_format::StringArray = ["<s>", "\u{2581}a", ""].into_iter().collect();
    writer.metadata("tokenizer.ggml.tokens", tokens).unwrap();
    for (kind, name) in KINDS {
        writer.tensor(name, &tensor.clone().into(), kind).unwrap();
    }
    writer.finish().unwrap();
    run(READ, &[&path, dir.path()]);
    for (_, name) in KINDS {
        assert_eq!(read_floats(&dir.path().join(format!("{name}.f32"))), tensor.dequantize(), "{name}");
    }
}

#[test]
fn trike_reads_what_the_package_splits() {
    if !has_package("gguf") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("m.gguf");
    run(SPLIT, &[&whole]);
    let parts = trike_format::gguf_parts("m-00001-of-00003.gguf").unwrap();
    for part in parts {
        let file = Gguf::open(dir.path().join(&part)).unwrap();
        let names: Vec<&str> = file.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!((names, file.files().len()), (vec!["t0", "t1", "t2", "t3", "t4"], 3), "{part}");
        assert_eq!(file.i64("llama.block_count").unwrap(), Some(7), "{part}");
        for i in 0..5 {
            let want: Vec<f32> = (0..64).map(|k| (k + i) as f32).collect();
            assert_eq!(file.load(&format!("t{i}")).unwrap().to_f32(), want);
        }
    }
}

#[test]
fn trike_reads_what_the_package_writes() {
    if !has_package("gguf") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let values = ternary().dequantize();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(dir.path().join("values.f32"), bytes).unwrap();
    run(WRITE, &[&path, dir.path()]);

    let file = Gguf::open(&path).unwrap();
    assert_eq!(file.u32("llama.block_count").unwrap(), Some(7));
    assert_eq!(file.strings("tokenizer.ggml.tokens").unwrap().unwrap().get(1), Some("\u{2581}a"));
    for (kind, name) in KINDS {
        assert_eq!(file.info(name).unwrap().kind, StoredType::from(kind));
        let tensor = file.load(name).unwrap();
        assert!(matches!(&tensor, Tensor::Ternary(t) if (t.rows(), t.cols()) == (ROWS, COLS)));
        assert_eq!(tensor.to_f32(), values, "{name}");
    }
    assert_eq!(file.load("norm").unwrap().to_f32(), values[..COLS]);
}

#[test]
fn dense_blocks_have_the_values_that_the_package_gives_them() {
    if !has_package("gguf") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    run(BLOCKS, &[&path, dir.path()]);
    let file = Gguf::open(&path).unwrap();
    let count = |end: &str| file.tensors().iter().filter(|t| t.name.ends_with(end)).count();
    assert_eq!((file.tensors().len() - count("_quantized"), count("_quantized") >= 5), (8, true));
    for info in file.tensors() {
        let name = &info.name;
        assert_eq!(info.kind.to_string(), name.trim_end_matches("_quantized"));
        let tensor = file.load(name).unwrap();
        let minimum = ["Q4_1", "Q5_1", "Q4_K", "Q5_K"].iter().any(|kind| name.starts_with(kind));
        assert_eq!(matches!(tensor, Tensor::Dense(_)), minimum, "{name}");
        assert_eq!(tensor.shape(), [ROWS, COLS]);
        assert_eq!(tensor.to_f32(), read_floats(&dir.path().join(format!("{name}.f32"))), "{name}");
    }
}

#[test]
fn types_of_the_forks_have_the_values_that_were_packed() {
    if !has_package("numpy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    run(PACK, &[dir.path()]);
    let kinds = [("I2_S", 36), ("PQ2_0", 142), ("PQ2_0_dense", 142), ("PTQ1_0", 143)];
    let raw = kinds.iter().fold(RawGguf::default(), |raw, (name, id)| {
        let data = std::fs::read(dir.path().join(format!("{name}.bin"))).unwrap();
        raw.tensor(name, &[640, 6], *id, &data)
    });
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, raw.bytes()).unwrap();
    let file = Gguf::open(&path).unwrap();
    for (name, _) in kinds {
        let info = file.info(name).unwrap();
        assert!(info.kind.is_ternary() && name.starts_with(&info.kind.to_string()));
        let tensor = file.load(name).unwrap();
        let granularity = match &tensor {
            Tensor::Ternary(trits) => Some(trits.scales().granularity()),
            _ => None,
        };
        let want = match name {
            "I2_S" => Some(Granularity::Tensor),
            "PQ2_0_dense" => None,
            _ => Some(Granularity::Group(GroupSize::G128)),
        };
        assert_eq!(granularity, want, "{name}");
        assert_eq!(tensor.to_f32(), read_floats(&dir.path().join(format!("{name}.f32"))), "{name}");
    }
}

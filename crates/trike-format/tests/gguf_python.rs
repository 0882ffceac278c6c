//! GGUF against an implementation that shares no code: the `gguf` package from PyPI, both ways.
//!
//! The interpreter is `TRIKE_PYTHON`, or `python3`. Where it cannot import `gguf` the test prints
//! `skipped: no python gguf package`; with `CI=true` that is a failure.

use std::{path::Path, process::Command};

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

fn python() -> Command {
    Command::new(std::env::var_os("TRIKE_PYTHON").unwrap_or_else(|| "python3".into()))
}

#[expect(clippy::print_stdout, reason = "the test runner counts these lines")]
fn has_package() -> bool {
    let found = python().args(["-c", "import gguf, numpy"]).output().is_ok_and(|o| o.status.success());
    if !found {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "no python gguf package, and CI=true makes that a failure: pip install gguf"
        );
        println!("skipped: no python gguf package");
    }
    found
}

fn run(script: &str, file: &Path, dir: &Path) {
    let output = python().args(["-c", script]).arg(file).arg(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Every block has a nonzero trit, since the package takes the scale from the largest magnitude.
fn ternary() -> TritTensor {
    let mut rng = Rng::new(21);
    let mut trits = rng.trits(ROWS * COLS, 0.7);
    trits.iter_mut().step_by(256).for_each(|t| *t = 1);
    let scales: Vec<f16> = (0..ROWS * COLS / 256).map(|_| f16::from_f32(0.01 + rng.f32_unit())).collect();
    let scales = Scales::new(Granularity::Group(GroupSize::G256), scales, None);
    TritTensor::from_trits(ROWS, COLS, &trits, Encoding::Planes, scales).unwrap()
}

fn read_floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

#[test]
fn the_package_reads_what_trike_writes() {
    if !has_package() {
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
    run(READ, &path, dir.path());
    for (_, name) in KINDS {
        assert_eq!(read_floats(&dir.path().join(format!("{name}.f32"))), tensor.dequantize(), "{name}");
    }
}

#[test]
fn trike_reads_what_the_package_writes() {
    if !has_package() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let values = ternary().dequantize();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(dir.path().join("values.f32"), bytes).unwrap();
    run(WRITE, &path, dir.path());

    let file = Gguf::open(&path).unwrap();
    assert_eq!(file.u32("llama.block_count").unwrap(), Some(7));
    assert_eq!(file.strings("tokenizer.ggml.tokens").unwrap().unwrap().get(1), Some("\u{2581}a"));
    for (kind, name) in KINDS {
        assert_eq!(file.info(name).unwrap().kind, StoredType::from(kind));
        let tensor = file.load(name).unwrap();
        assert!(matches!(&tensor, Tensor::Trits(t) if (t.rows(), t.cols()) == (ROWS, COLS)));
        assert_eq!(tensor.to_f32(), values, "{name}");
    }
    assert_eq!(file.load("norm").unwrap().to_f32(), values[..COLS]);
}

//! Damaged and malicious files: every truncation and thousands of bit flips, in every format. No file may cause a panic or take
//! more memory than its size plus a limit; most are rejected, and what still loads is validated.
//!
//! The samples are generated here, so that the repository contains no binary files.

#[path = "it/common/mod.rs"]
mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use common::{RawGguf, q2_0_blocks, string};
use serde_json::json;
use trike_core::TileLayout;
use trike_format::{
    DenseData, DenseTensor, FileKind, FormatError, Gguf, HfDir, HfDirWriter, Int8Tensor, Llama2c, Tensor,
    TensorSource, detect,
};
use trike_testkit::Rng;
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Scales, TritTensor};

/// An allocator that tracks the current and the peak memory of this thread.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every request is forwarded to the system allocator unchanged; counting allocates nothing, since the cells are initialized
// in place and need no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's layout satisfies the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `alloc` above returned the pointer from the same allocator for the same layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory for a file of a few kilobytes in addition to its size: lists, names, error messages, copies of tensors.
const CAP: isize = 1 << 20;
/// A weight of `Q2_0` that becomes dense f32 takes 16 times its bits in the file.
const GROWTH: isize = 20;

/// Opens a path by its detected kind and loads all tensors; `true` if nothing was rejected.
fn exercise(path: &Path) -> bool {
    fn load_all(source: Result<impl TensorSource, FormatError>) -> bool {
        let Ok(source) = source else { return false };
        source.tensors().iter().fold(true, |all, info| match source.load(&info.name) {
            Ok(tensor) => {
                assert_eq!(tensor.shape().iter().product::<usize>() as u64, info.elements());
                assert!(tensor.to_f32().iter().all(|w| !w.is_nan()), "{} has a NaN", info.name);
                all
            }
            Err(error) => {
                assert!(error.to_string().contains(&info.name), "{error}");
                false
            }
        })
    }
    match detect(path) {
        Ok(FileKind::Gguf) => load_all(Gguf::open(path)),
        Ok(FileKind::Llama2c) => load_all(Llama2c::open(path)),
        Ok(FileKind::HfDir) => load_all(HfDir::open(path)),
        Err(_) => {
            // A header that is no longer recognized must not make a reader panic that is called anyway.
            load_all(Gguf::open(path)) && load_all(Llama2c::open(path))
        }
    }
}

/// Runs [`exercise`] with a memory limit; a panic names the change.
fn survives(model: &Path, size: usize, what: &str) -> bool {
    let before = HELD.get();
    PEAK.set(before);
    let Ok(whole) = catch_unwind(AssertUnwindSafe(|| exercise(model))) else { panic!("panicked: {what}") };
    let peak = PEAK.get() - before;
    let bound = GROWTH * size as isize + CAP;
    assert!(peak <= bound, "{what}: {peak} bytes of memory for a file of {size}");
    whole
}

/// Every truncation of `file`, trailing bytes, and bit flips, most within `header` bytes of the start.
fn attack(model: &Path, file: &Path, header: usize, seed: u64) {
    let good = std::fs::read(file).unwrap();
    // A new file each time: some file systems flush a truncated file to disk first.
    let put = |bytes: &[u8]| {
        std::fs::remove_file(file).unwrap();
        std::fs::write(file, bytes).unwrap();
    };
    assert!(survives(model, good.len(), "the sample itself"));
    let step = good.len().div_ceil(800).max(1);
    for len in (0..header.min(good.len())).chain((header..good.len()).step_by(step)) {
        put(&good[..len]);
        // Padding at the end of a GGUF file may be missing; everything else is detected.
        let whole = survives(model, len, &format!("{} cut at {len}", file.display()));
        assert!(!whole || good.len() - len < 32, "{} cut at {len} was taken for whole", file.display());
    }
    let mut rng = Rng::new(seed);
    for i in 0..1500 {
        let mut bytes = good.clone();
        for _ in 0..=i % 3 {
            let at = if i % 5 == 0 { rng.below(bytes.len()) } else { rng.below(header) };
            bytes[at] ^= 1 << rng.below(8);
        }
        if i % 7 == 0 {
            // Extreme values find what single bit flips do not.
            let at = rng.below(header.saturating_sub(8).max(1));
            let limit = [u64::MAX, 1 << 63, 1 << 32, u64::from(u32::MAX), 0][rng.below(5)].to_le_bytes();
            let len = [4, 8][rng.below(2)].min(bytes.len() - at);
            bytes[at..at + len].copy_from_slice(&limit[..len]);
        }
        put(&bytes);
        survives(model, bytes.len(), &format!("{} change {i} of seed {seed}", file.display()));
    }
    put(&good);
}

fn scratch(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    (dir, path)
}

#[test]
fn gguf() {
    let list =
        |type_id: u32, n: u64, data: &[u8]| [&type_id.to_le_bytes()[..], &n.to_le_bytes(), data].concat();
    let words = ["<s>", "a", "bc"].map(string).concat();
    let mut tq2 = vec![0x55; 2 * 66];
    tq2[64..66].copy_from_slice(&[0, 0x3C]);
    tq2[130..].copy_from_slice(&[0, 0x38]);
    let raw = RawGguf::default()
        .key("general.architecture", 8, &string("llama"))
        .key("general.alignment", 4, &32u32.to_le_bytes())
        .key("llama.rope.freq_base", 6, &1e4f32.to_le_bytes())
        .key("tokenizer.ggml.tokens", 9, &list(8, 3, &words))
        .key("tokenizer.ggml.scores", 9, &list(6, 2, &[0; 8]))
        .key("nested", 9, &list(9, 1, &list(7, 2, &[0, 1])))
        .tensor("norm", &[4], 0, &[0; 16])
        .tensor("half", &[4, 2], 1, &[0; 16])
        .tensor("brain", &[2, 2, 2], 30, &[0; 16])
        .tensor("int8", &[32, 2], 8, &[0; 68])
        // Not the last tensor: truncated to the right length, its blocks of 64 would look like blocks of 128.
        .tensor("q2", &[512, 8], 42, &q2_0_blocks(&[2; 4096], 64, |_| 0x3C00))
        .tensor("tq1", &[256], 34, &[0; 54])
        .tensor("i2s", &[128], 36, &[0x55; 64])
        .tensor("pq2", &[128], 142, &[0x15; 34])
        .tensor("ptq1", &[128], 143, &[0x15; 28])
        .tensor("q4_0", &[32], 2, &[0x15; 18])
        .tensor("q4_1", &[32], 3, &[0x15; 20])
        .tensor("q5_0", &[32], 6, &[0x15; 22])
        .tensor("q5_1", &[32], 7, &[0x15; 24])
        .tensor("q4k", &[256], 12, &[0x15; 144])
        .tensor("q5k", &[256], 13, &[0x15; 176])
        .tensor("q6k", &[256], 14, &[0x15; 210])
        .tensor("tq2", &[256, 2], 35, &tq2);
    let (_dir, path) = scratch("m.gguf");
    std::fs::write(&path, raw.bytes()).unwrap();
    attack(&path, &path, raw.header().len(), 41);
}

#[test]
fn llama2c_in_every_version() {
    let numbers = |vocab: i32| [4i32, 6, 2, 2, 1, vocab, 5].map(i32::to_le_bytes).concat();
    let padded = |version: u32, tail: &[u8]| {
        let mut header = [0x616b_3432u32, version].map(u32::to_le_bytes).concat();
        header.extend(numbers(3));
        header.extend(tail);
        header.resize(256, 0);
        header
    };
    let floats = |n: usize| vec![0u8; 4 * n];
    let matrices = 3 * 4 + 2 * (16 + 8 + 8 + 16 + 3 * 24);
    let v2_matrices = matrices + matrices / 4 * 4;
    let samples = [
        (28, [numbers(-3), floats(20 + matrices + 10 + 12)].concat()),
        (64, [padded(1, &[1]), floats(20 + matrices)].concat()),
        (64, [padded(2, &[1, 4, 0, 0, 0]), floats(20), vec![0; v2_matrices]].concat()),
    ];
    for (i, (header, bytes)) in samples.into_iter().enumerate() {
        let (_dir, path) = scratch("m.bin");
        std::fs::write(&path, bytes).unwrap();
        attack(&path, &path, header, 50 + i as u64);
    }
}

/// A directory with a tensor in every packed form.
fn packed_directory(path: &Path, shard_limit: u64) {
    let mut rng = Rng::new(61);
    let mut writer =
        HfDirWriter::create(path, json!({ "model_type": "llama" })).unwrap().shard_limit(shard_limit);
    for encoding in Encoding::ALL {
        let planes = [rng.trits(3 * 70, 0.2), rng.trits(3 * 70, 0.2)];
        let planes: Vec<&[i8]> = planes.iter().map(Vec::as_slice).collect();
        let means = rng.normals(6);
        let scales = Scales::new(Granularity::Group(GroupSize::G64), rng.normals(12), Some(means.into()));
        let tensor = TritTensor::from_planes(3, 70, &planes, encoding, Coupling::Free, scales).unwrap();
        writer.tensor(&format!("w.{encoding}"), &tensor.clone().into()).unwrap();
        if let Encoding::TwoBit | Encoding::Base3 = encoding {
            let layout = if encoding == Encoding::Base3 { TileLayout::Base3 } else { TileLayout::TwoBit };
            writer.tiles(&format!("t.{encoding}"), &tensor.into(), layout).unwrap();
        }
    }
    let dense = DenseTensor::new(vec![2, 40], DenseData::F32(rng.normals(80))).unwrap();
    let int8 = Int8Tensor::quantize(&dense, 32, true).unwrap();
    writer.tensor("int8", &int8.clone().into()).unwrap();
    writer.tiles("int8.t", &int8.into(), TileLayout::TwoBit).unwrap();
    writer.tensor("norm", &Tensor::from(dense)).unwrap();
    writer.finish().unwrap();
}

#[test]
fn safetensors_and_configurations() {
    let (_dir, path) = scratch("model");
    packed_directory(&path, u64::MAX);
    let weights = path.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    attack(&path, &weights, header, 62);
    let config = path.join("config.json");
    let len = std::fs::metadata(&config).unwrap().len() as usize;
    // A description without its last line break is still complete.
    attack(&path, &config, len, 63);
}

#[test]
fn bitnet_weights_and_their_configuration() {
    let (_dir, path) = scratch("model");
    std::fs::create_dir(&path).unwrap();
    let header = json!({
        "a.weight": { "dtype": "U8", "shape": [2, 35], "data_offsets": [0, 70] },
        "a.weight_scale": { "dtype": "BF16", "shape": [1], "data_offsets": [70, 72] },
        "norm": { "dtype": "F32", "shape": [2], "data_offsets": [72, 80] },
    });
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let start = bytes.len();
    bytes.extend([0x95; 70]);
    bytes.extend([0x00, 0x3F, 0, 0, 0, 0, 0, 0, 0, 0]);
    let weights = path.join("model.safetensors");
    std::fs::write(&weights, bytes).unwrap();
    let config = path.join("config.json");
    let packing = json!({ "quant_method": "bitnet", "linear_class": "autobitlinear",
                          "quantization_mode": "offline", "modules_to_not_convert": ["lm_head"] });
    let text = json!({ "quantization_config": packing }).to_string();
    std::fs::write(&config, &text).unwrap();
    attack(&path, &weights, start, 65);
    attack(&path, &config, text.len(), 66);
}

#[test]
fn shards_and_their_index() {
    let (_dir, path) = scratch("model");
    packed_directory(&path, 300);
    let index = path.join("model.safetensors.index.json");
    let len = std::fs::metadata(&index).unwrap().len() as usize;
    attack(&path, &index, len, 64);
}

#[test]
fn header_numbers_never_become_memory() {
    // Each header declares a huge list in a file of a few bytes.
    let array = |type_id: u32, n: u64| [&type_id.to_le_bytes()[..], &n.to_le_bytes()].concat();
    let raw = RawGguf::default;
    let mut samples: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for type_id in 0..13 {
        for n in [1u64 << 24, (1 << 24) + 1, 1 << 40, u64::MAX] {
            samples.insert(
                format!("array of {n} of type {type_id}"),
                raw().key("k", 9, &array(type_id, n)).bytes(),
            );
        }
    }
    for n in [1u64 << 26, 1 << 40, u64::MAX] {
        samples.insert(format!("string of {n}"), raw().key("k", 8, &n.to_le_bytes()).bytes());
    }
    for n in [65_536, 100_000, u64::MAX] {
        samples.insert(format!("{n} tensors"), RawGguf { count: n, ..raw() }.bytes());
        samples.insert(format!("{n} keys"), RawGguf { keys: n, ..raw() }.bytes());
    }
    for (type_id, side) in [(0, 1u64 << 24), (35, 1 << 24), (42, 1 << 20), (8, u64::MAX / 32 * 32)] {
        samples.insert(
            format!("type {type_id} of side {side}"),
            raw().info("w", &[side, side], type_id, 0).bytes(),
        );
    }
    let (_dir, path) = scratch("m.gguf");
    for (what, bytes) in samples {
        std::fs::write(&path, &bytes).unwrap();
        assert!(!survives(&path, bytes.len(), &what), "{what} was taken for whole");
    }
}

#[test]
fn files_of_other_kinds_are_named() {
    let (_dir, path) = scratch("model.bin");
    for (start, expected) in [
        (&b""[..], "an empty file"),
        (b"PK\x03\x04....", "zip archive"),
        (b"\x80\x02}q\x00", "pickle"),
        (b"lmgg\x01\0\0\0", "before GGUF"),
        (b"tjgg\x01\0\0\0", "before GGUF"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"\x10\0\0\0\0\0\0\0{\"a\":1}", "a single safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"once upon a time there was a file", "an unknown file format"),
    ] {
        std::fs::write(&path, start).unwrap();
        let message = detect(&path).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("model.bin"), "{message}");
    }
    let dir = path.parent().unwrap();
    assert!(detect(dir).unwrap_err().to_string().contains("a directory without config.json"));
    assert!(matches!(detect(dir.join("absent")), Err(FormatError::Io { .. })));
    assert!(Gguf::open(dir).is_err());
    let onnx = dir.join("model.onnx");
    std::fs::write(&onnx, b"\x08\x07\x12\x07pytorch-------------------------").unwrap();
    assert!(detect(&onnx).unwrap_err().to_string().contains("ONNX"));
}

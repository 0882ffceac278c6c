//! llama2.c checkpoints of realistic sizes, from a writer that shares no code with the reader.

use std::path::PathBuf;

use tempfile::TempDir;
use trike_format::{FileKind, FormatError, Llama2c, StoredType, TensorInfo, TensorSource, detect};
use trike_testkit::{Llama2cCheckpoint, Llama2cShape, assert_all_near, storyteller};

fn write(bytes: Vec<u8>) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.bin");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

#[test]
fn the_quantized_checkpoint_is_the_dense_one_within_half_a_step() {
    let model = storyteller();
    let (_first, dense) = write(model.to_f32_bytes());
    let (_second, int8) = write(model.to_int8_bytes(8));
    assert_eq!(detect(&dense).unwrap(), FileKind::Llama2c);
    assert_eq!(detect(&int8).unwrap(), FileKind::Llama2c);
    let (dense, int8) = (Llama2c::open(dense).unwrap(), Llama2c::open(int8).unwrap());
    let config = *dense.config();
    assert_eq!((config.version, config.dim, config.hidden_dim, config.n_layers), (0, 64, 172, 5));
    assert_eq!((config.n_heads, config.n_kv_heads, config.vocab_size, config.seq_len), (8, 4, 512, 512));
    assert!(config.shared_classifier);
    assert_eq!((int8.config().version, int8.config().group_size), (2, 8));
    let weights: u64 = dense.tensors().iter().map(TensorInfo::elements).sum();
    assert_eq!(weights, 260_032);

    for info in dense.tensors() {
        let want = dense.load(&info.name).unwrap().to_f32();
        let got = int8.load(&info.name).unwrap().to_f32();
        match int8.info(&info.name).unwrap().kind {
            StoredType::Int8 { group } => {
                // Groups of 8 in the file; 4 where they would cross the end of a row of 172.
                assert_eq!(group, if info.shape[1] == 172 { 4 } else { 8 });
                for (got, want) in got.chunks(8).zip(want.chunks(8)) {
                    let step = want.iter().fold(0f32, |m, w| m.max(w.abs())) / 127.0;
                    assert_all_near!(got, want, abs = 0.501 * step, "{}, step {step}", info.name);
                }
            }
            _ => assert_eq!(got, want, "{}", info.name),
        }
    }
}

#[test]
fn the_larger_checkpoint_loads() {
    let model = Llama2cCheckpoint::random(Llama2cShape::STORIES_3M, 3);
    let (_dir, path) = write(model.to_int8_bytes(64));
    let file = Llama2c::open(path).unwrap();
    assert_eq!((file.config().dim, file.config().kv_dim(), file.config().head_dim()), (192, 64, 32));
    for info in file.tensors() {
        assert_eq!(file.load(&info.name).unwrap().shape(), info.shape);
    }
}

#[test]
fn a_truncated_checkpoint_says_how_much_is_missing() {
    let bytes = storyteller().to_f32_bytes();
    let (_dir, path) = write(bytes[..bytes.len() / 2].to_vec());
    assert_eq!(detect(&path).unwrap(), FileKind::Llama2c);
    let error = Llama2c::open(&path).unwrap_err();
    assert!(matches!(error, FormatError::Truncated { .. }));
    assert!(error.to_string().contains(&format!("expected {} bytes", bytes.len())), "{error}");
}

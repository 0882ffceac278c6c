//! GGUF types that are read but not written, or not read: where they are rejected. Their values are compared in `gguf_python.rs`.

use std::path::PathBuf;

use crate::common::RawGguf;
use tempfile::TempDir;
use trike_format::{
    DenseData, DenseTensor, FormatError, Gguf, GgufType, GgufWriter, StoredType, TensorSource,
};

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
    open(&raw.bytes()).unwrap_err().to_string()
}

#[test]
fn other_types_are_listed_and_refused_by_name_when_loaded() {
    let raw = RawGguf::default()
        .tensor("a", &[256], 10, &[0; 84])
        .tensor("b", &[256], 20, &[0; 144])
        .tensor("c", &[4], 77, &[0; 16])
        .tensor("d", &[2], 0, &[0; 8]);
    let file = open(&raw.bytes()).unwrap();
    for (name, kind) in [("a", "Q2_K"), ("b", "IQ4_NL"), ("c", "unknown GGUF type 77")] {
        assert!(!file.info(name).unwrap().kind.is_supported());
        let message = file.load(name).unwrap_err().to_string();
        assert!(message.contains(kind) && message.contains(&format!("`{name}`")), "{message}");
    }
    assert_eq!(file.load("d").unwrap().to_f32(), [0.0, 0.0]);
    assert!(matches!(file.load("e"), Err(FormatError::MissingTensor { .. })));
}

#[test]
fn i2_s_is_read_where_sizes_and_codes_are_those_of_its_x86_layout() {
    let data = |blocks: usize, code: u8| {
        [vec![code; 32 * blocks], 0.5f32.to_le_bytes().to_vec(), vec![0; 28]].concat()
    };
    let norm = |raw: RawGguf| raw.tensor("norm", &[4], 0, &[0; 16]);
    let good = norm(RawGguf::default().tensor("w", &[256, 3], 36, &data(6, 0b10_10_10_10)));
    let file = open(&good.bytes()).unwrap();
    assert_eq!(file.info("w").unwrap().bytes, 6 * 32 + 32);
    assert_eq!(file.load("w").unwrap().to_f32(), [0.5; 768]);

    // Without a scale, with a scale per row, with rows of half a block as in an ARM build, and of the type for which some builds
    // used the id for a while.
    let cases: [(&[u64], Vec<u8>); 4] = [
        (&[256, 3], vec![0x55; 6 * 32]),
        (&[256, 3], [data(2, 0x55), data(2, 0x55), data(2, 0x55)].concat()),
        (&[192, 2], data(3, 0x55)),
        (&[256, 3], vec![0; 768 / 32 * 18]),
    ];
    for (shape, data) in cases {
        let raw =
            norm(RawGguf::default().tensor("ok", &[128], 36, &[0x55; 64]).tensor("w", shape, 36, &data));
        let file = open(&raw.bytes()).unwrap();
        assert_eq!(file.load("norm").unwrap().to_f32(), [0.0; 4]);
        for name in ["w", "ok"] {
            assert_eq!(file.info(name).unwrap().kind, StoredType::Unsupported("I2_S".to_owned()));
            let message = file.load(name).unwrap_err().to_string();
            assert!(message.contains(&format!("tensor `{name}`")), "{message}");
            assert!(
                message.contains("Trike reads only the x86 layout") && message.contains("`w` of shape"),
                "{message}"
            );
        }
    }
    let mut code3 = data(6, 0x55);
    code3[40] = 0xFF;
    let message = open(&norm(RawGguf::default().tensor("w", &[256, 3], 36, &code3)).bytes()).unwrap();
    let message = message.load("w").unwrap_err().to_string();
    assert!(message.contains("I2_S with a code of 3"), "{message}");
}

#[test]
fn types_that_are_only_read_are_refused_by_the_writer_and_when_cut() {
    let read_only = GgufType::ALL.into_iter().filter(|kind| !kind.is_writable());
    assert_eq!(read_only.clone().count(), 10);
    for kind in read_only {
        let (_dir, path) = scratch();
        let zeros = DenseTensor::new(vec![2, 256], DenseData::F32(vec![0.0; 512])).unwrap();
        let mut writer = GgufWriter::create(&path).unwrap();
        let message = writer.tensor("w", &zeros.into(), kind).unwrap_err().to_string();
        assert!(
            message.contains(&format!("{kind} cannot hold")) && message.contains("only reads"),
            "{message}"
        );

        let len = kind.block_bytes() * (512 / kind.block());
        let raw = |len| RawGguf::default().tensor("w", &[256, 2], kind.id(), &vec![0; len]);
        if kind != GgufType::I2S {
            assert!(open(&raw(len).bytes()).unwrap().load("w").is_ok(), "{kind}");
            let message = refusal(&raw(len - 32));
            assert!(message.contains("truncated at the data of tensor `w`"), "{message}");
            let ragged = RawGguf::default().tensor("w", &[kind.block() as u64 + 1], kind.id(), &[0; 512]);
            assert!(refusal(&ragged).contains(&format!("weights for {kind}")));
        }
        let stacked = RawGguf::default().tensor("w", &[256, 1, 2], kind.id(), &vec![0; len + 32]);
        if let Ok(file) = open(&stacked.bytes()) {
            let message = file.load("w").unwrap_err().to_string();
            assert!(message.contains(&format!("{kind} of 3 dimensions")), "{message}");
        }
    }
}

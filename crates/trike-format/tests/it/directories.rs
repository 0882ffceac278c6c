//! Invalid directories: dangling and cyclic links, directories and pipes in place of files, missing or contradictory shards, empty
//! or unreadable files.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use trike_format::{
    DenseData, DenseTensor, FileKind, FormatError, Gguf, HfDir, HfDirWriter, Llama2c, Tensor, TensorSource,
    detect,
};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn scratch() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model");
    (dir, path)
}

/// A directory of four vectors `a` to `d`, in shards of at most `shard` bytes.
fn model(path: &Path, shard: u64) {
    let mut writer = HfDirWriter::create(path, json!({ "model_type": "llama" })).unwrap().shard_limit(shard);
    for name in ["a", "b", "c", "d"] {
        let tensor = DenseTensor::new(vec![2], DenseData::F32(vec![1.0, 2.0])).unwrap();
        writer.tensor(name, &Tensor::from(tensor)).unwrap();
    }
    writer.finish().unwrap();
}

fn sharded() -> (TempDir, PathBuf) {
    let (dir, path) = scratch();
    model(&path, 16);
    assert_eq!(HfDir::open(&path).unwrap().tensors().len(), 4);
    (dir, path)
}

fn shard(i: usize) -> String {
    format!("model-0000{i}-of-00002.safetensors")
}

/// The error of `detect`, or of the reader if detection succeeds.
fn message(path: &Path) -> String {
    let error = match detect(path) {
        Err(error) => error,
        Ok(FileKind::HfDir) => HfDir::open(path).unwrap_err(),
        Ok(FileKind::Gguf) => Gguf::open(path).unwrap_err(),
        Ok(FileKind::Llama2c) => Llama2c::open(path).unwrap_err(),
    };
    error.to_string()
}

fn assert_names(path: &Path, file: &str, expected: &str) {
    let message = message(path);
    assert!(message.contains(expected) && message.contains(file), "expected {expected}, got {message}");
}

#[test]
fn empty_files() {
    for file in [CONFIG, WEIGHTS] {
        let (_dir, path) = scratch();
        model(&path, u64::MAX);
        std::fs::write(path.join(file), b"").unwrap();
        assert_names(&path, file, "an empty file; finish the download");
    }
    for file in [INDEX.to_owned(), shard(1), shard(2)] {
        let (_dir, path) = sharded();
        std::fs::write(path.join(&file), b"").unwrap();
        assert_names(&path, &file, "an empty file; finish the download");
    }
    let (_dir, path) = scratch();
    std::fs::write(&path, b"").unwrap();
    assert_names(&path, "model", "an empty file");
    for error in [Gguf::open(&path).unwrap_err(), Llama2c::open(&path).unwrap_err()] {
        assert!(error.to_string().contains("an empty file"), "{error}");
    }
}

#[test]
fn directories_in_the_place_of_files() {
    for file in [CONFIG, WEIGHTS] {
        let (_dir, path) = scratch();
        model(&path, u64::MAX);
        std::fs::remove_file(path.join(file)).unwrap();
        std::fs::create_dir(path.join(file)).unwrap();
        assert_names(&path, file, "a directory where a file is expected");
    }
    for file in [INDEX.to_owned(), shard(2)] {
        let (_dir, path) = sharded();
        std::fs::remove_file(path.join(&file)).unwrap();
        std::fs::create_dir(path.join(&file)).unwrap();
        assert_names(&path, &file, "a directory where a file is expected");
    }
    let (_dir, path) = scratch();
    std::fs::create_dir(&path).unwrap();
    for error in [Gguf::open(&path).unwrap_err(), Llama2c::open(&path).unwrap_err()] {
        assert!(error.to_string().contains("a directory where a file is expected"), "{error}");
    }
}

#[test]
fn a_file_in_the_place_of_a_directory() {
    let (_dir, path) = scratch();
    std::fs::write(&path, b"x").unwrap();
    let error = HfDir::open(&path).unwrap_err();
    assert!(matches!(error, FormatError::Io { .. }) && error.to_string().contains(CONFIG), "{error}");
}

#[test]
fn shards_that_are_missing_or_disagree_with_the_index() {
    let (_dir, path) = sharded();
    std::fs::remove_file(path.join(shard(2))).unwrap();
    assert_names(&path, &shard(2), "a shard listed in the index is missing; finish the download");
    let (_dir, path) = sharded();
    std::fs::remove_file(path.join(INDEX)).unwrap();
    assert_names(&path, "model", "no model.safetensors");

    let (_dir, path) = sharded();
    let index: Value = serde_json::from_slice(&std::fs::read(path.join(INDEX)).unwrap()).unwrap();
    let with = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        let mut index = index.clone();
        change(index["weight_map"].as_object_mut().unwrap());
        std::fs::write(path.join(INDEX), index.to_string()).unwrap();
        message(&path)
    };
    let another = with(&|map| drop(map.insert("a".to_owned(), shard(2).into())));
    assert!(another.contains("tensor `a`") && another.contains("no such tensor there"), "{another}");
    let missing = with(&|map| drop(map.insert("e".to_owned(), shard(1).into())));
    assert!(missing.contains("tensor `e`") && missing.contains("no such tensor there"), "{missing}");
    let extra = with(&|map| drop(map.remove("d")));
    assert!(extra.contains("tensor `d`: expected an entry in model.safetensors.index.json"), "{extra}");

    // The second shard contains all tensors of the first one.
    std::fs::write(path.join(INDEX), index.to_string()).unwrap();
    std::fs::copy(path.join(shard(1)), path.join("third.safetensors")).unwrap();
    let twice = with(&|map| drop(map.insert("a".to_owned(), "third.safetensors".into())));
    assert!(
        twice.contains("expected the tensor only in")
            && twice.contains(", as in model.safetensors.index.json"),
        "{twice}"
    );
}

#[test]
fn one_of_300_shards_is_cut() {
    let (_dir, path) = scratch();
    let mut writer = HfDirWriter::create(&path, json!({ "model_type": "llama" })).unwrap().shard_limit(8);
    for i in 0..300 {
        let tensor = DenseTensor::new(vec![2], DenseData::F32(vec![1.0, i as f32])).unwrap();
        writer.tensor(&format!("t{i:03}"), &Tensor::from(tensor)).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(HfDir::open(&path).unwrap().tensors().len(), 300);
    let shard = path.join("model-00207-of-00300.safetensors");
    let whole = std::fs::read(&shard).unwrap();
    // Detected when the directory is opened, not only when a tensor is loaded.
    for len in [0, 4, 8, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&shard, &whole[..len]).unwrap();
        assert_names(&path, "model-00207-of-00300.safetensors", "");
    }
    std::fs::write(&shard, &whole).unwrap();
    assert_eq!(HfDir::open(&path).unwrap().tensors().len(), 300);
}

#[test]
fn pointers_of_git_lfs() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 10\n";
    for file in [CONFIG, WEIGHTS] {
        let (_dir, path) = scratch();
        model(&path, u64::MAX);
        std::fs::write(path.join(file), pointer).unwrap();
        assert_names(&path, file, "Git LFS pointer");
    }
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_are_followed() {
        let (dir, path) = sharded();
        // As in the hub's cache: every file and the directory are symbolic links.
        let blobs = dir.path().join("blobs");
        std::fs::create_dir(&blobs).unwrap();
        for entry in std::fs::read_dir(&path).unwrap().map(Result::unwrap) {
            let blob = blobs.join(entry.file_name());
            std::fs::rename(entry.path(), &blob).unwrap();
            symlink(Path::new("../blobs").join(entry.file_name()), entry.path()).unwrap();
        }
        let linked = dir.path().join("snapshot");
        symlink("model", &linked).unwrap();
        assert_eq!(detect(&linked).unwrap(), FileKind::HfDir);
        let opened = HfDir::open(&linked).unwrap();
        assert_eq!(opened.load("d").unwrap().to_f32(), [1.0, 2.0]);
        assert!(opened.file(CONFIG).is_some());
    }

    #[test]
    fn links_to_nothing_and_in_circles() {
        let nowhere = "a symbolic link to a missing file; finish the download";
        for file in [CONFIG, WEIGHTS] {
            for (target, expected) in [("nowhere", nowhere), (file, "symbolic link")] {
                let (_dir, path) = scratch();
                model(&path, u64::MAX);
                std::fs::remove_file(path.join(file)).unwrap();
                symlink(target, path.join(file)).unwrap();
                assert_names(&path, file, expected);
            }
        }
        for file in [INDEX.to_owned(), shard(1)] {
            let (_dir, path) = sharded();
            std::fs::remove_file(path.join(&file)).unwrap();
            symlink("nowhere", path.join(&file)).unwrap();
            assert_names(&path, &file, nowhere);
            std::fs::remove_file(path.join(&file)).unwrap();
            symlink(&file, path.join(&file)).unwrap();
            assert_names(&path, &file, "symbolic link");
        }
        let (dir, path) = scratch();
        symlink("nowhere", &path).unwrap();
        assert_names(&path, "model", nowhere);
        assert!(Gguf::open(&path).unwrap_err().to_string().contains(nowhere));
        let circle = dir.path().join("circle");
        symlink("circle", &circle).unwrap();
        assert_names(&circle, "circle", "symbolic link");
    }

    #[test]
    fn pipes_and_devices_are_not_waited_for() {
        let (_dir, path) = scratch();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        if made.is_ok_and(|status| status.success()) {
            assert_names(&path, "model", "not a regular file");
            assert!(Llama2c::open(&path).unwrap_err().to_string().contains("not a regular file"));
        }
        for file in [CONFIG, WEIGHTS] {
            let (_dir, path) = scratch();
            model(&path, u64::MAX);
            std::fs::remove_file(path.join(file)).unwrap();
            symlink("/dev/zero", path.join(file)).unwrap();
            assert_names(&path, file, "not a regular file");
        }
    }

    #[test]
    fn files_that_may_not_be_read() {
        let (_dir, path) = scratch();
        model(&path, u64::MAX);
        std::fs::set_permissions(path.join(CONFIG), std::fs::Permissions::from_mode(0o000)).unwrap();
        if std::fs::read(path.join(CONFIG)).is_ok() {
            trike_testkit::skip("permissions do not bind this user");
            return;
        }
        assert_names(&path, CONFIG, "cannot read");
        for file in [WEIGHTS.to_owned(), INDEX.to_owned(), shard(2)] {
            let (_dir, path) = if file == WEIGHTS { scratch() } else { sharded() };
            if file == WEIGHTS {
                model(&path, u64::MAX);
            }
            std::fs::set_permissions(path.join(&file), std::fs::Permissions::from_mode(0o000)).unwrap();
            let message = message(&path);
            assert!(message.contains("cannot") && message.contains(&file), "{message}");
        }
        let (_dir, path) = sharded();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        assert_names(&path, CONFIG, "cannot open");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

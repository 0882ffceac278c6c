//! A directory, and the command in it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// The command with a directory of its own.
pub(crate) struct Trike {
    dir: TempDir,
}

impl Trike {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory") }
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> String {
        text(self.dir.path().join(name))
    }

    /// Writes a file into the directory.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// Copies the files of a model directory into a new one.
    pub(crate) fn copy_model(&self, from: &str, name: &str) -> PathBuf {
        let to = self.dir.path().join(name);
        std::fs::create_dir(&to).expect("a directory");
        for entry in Path::new(from).read_dir().expect("a model directory") {
            let path = entry.expect("an entry").path();
            // Not `copy`, which would also copy a read-only permission.
            std::fs::write(to.join(path.file_name().expect("a name")), std::fs::read(&path).expect("a file"))
                .expect("a file");
        }
        to
    }

    /// Writes a dense llama2.c checkpoint of `trike_testkit`'s stories, and its tokenizer.
    pub(crate) fn storyteller(&self) -> [String; 2] {
        [
            self.write("stories260K.bin", trike_testkit::storyteller().to_f32_bytes()),
            self.write("tok512.bin", trike_testkit::llama2c_vocabulary()),
        ]
    }

    /// The bundled model as a dense checkpoint, before packing.
    pub(crate) fn dense(&self) -> String {
        let out = self.path("dense");
        self.stdout(&["convert", &tiny(), &out, "--to", "f16", "--embeddings", "f16", "-q"]);
        out
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.prepare(Command::new(env!("CARGO_BIN_EXE_trike")), args)
    }

    /// The command on an emulated processor.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub(crate) fn emulated(&self, cpu: &str, args: &[&str]) -> Command {
        let mut emulator = Command::new("qemu-x86_64");
        emulator.args(["-cpu", cpu, env!("CARGO_BIN_EXE_trike")]);
        self.prepare(emulator, args)
    }

    /// A shell command line that finds the command by its name.
    #[cfg(unix)]
    pub(crate) fn shell(&self, line: &str) -> Command {
        let folder = Path::new(env!("CARGO_BIN_EXE_trike")).parent().expect("a folder");
        let others = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&others));
        let mut command = self.prepare(Command::new("sh"), &["-c", line]);
        command.env("PATH", std::env::join_paths(folders).expect("no colon in a path"));
        command
    }

    /// Sets up a clean environment, and the arguments.
    fn prepare(&self, mut command: Command, args: &[&str]) -> Command {
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy().to_ascii_uppercase();
            let foreign = name_text.starts_with("HF_") || name_text.ends_with("_PROXY");
            if foreign || name_text.starts_with("TRIKE_") || name_text.starts_with("HUGGING") {
                command.env_remove(name);
            }
        }
        // A test must not contact any hub but its own.
        command
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", self.path("hf"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("TRIKE_HISTORY", self.path("history"))
            .env_remove("TRANSFORMERS_OFFLINE");
        // Without a display, a Vulkan layer of Mesa prints warnings when devices are listed.
        command.env("NODEVICE_SELECT", "1");
        // The software driver compiles the same shaders in every process: half of the time of some tests.
        command.env("MESA_SHADER_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/shaders"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the command starts")
    }

    /// The stdout and stderr of a successful run.
    pub(crate) fn both(&self, args: &[&str]) -> (String, String) {
        let output = self.output(args);
        let (stdout, stderr) = (utf8(output.stdout), utf8(output.stderr));
        assert_eq!(output.status.code(), Some(0), "trike {args:?}: {stderr}");
        (stdout, stderr)
    }

    /// The stdout of a successful run.
    pub(crate) fn stdout(&self, args: &[&str]) -> String {
        self.both(args).0
    }

    /// The object printed by a run with `--json`, with empty stderr.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let (stdout, stderr) = self.both(args);
        assert_eq!(stderr, "", "trike {args:?}");
        let value: Value = serde_json::from_str(&stdout).expect("JSON");
        assert!(value.is_object(), "one object: {stdout}");
        value
    }

    /// The stderr of a run that fails with `code`; stdout must be empty.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.output(args);
        let stderr = utf8(output.stderr);
        assert_eq!(output.status.code(), Some(code), "trike {args:?}: {stderr}");
        assert_eq!(utf8(output.stdout), "", "trike {args:?}");
        assert!(stderr.starts_with("error: ") && stderr.ends_with('\n'), "trike {args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "trike {args:?}: {stderr}");
        stderr
    }

    /// The stdout and stderr of a run that prints a result and fails with 1.
    pub(crate) fn both_failing(&self, args: &[&str]) -> (String, String) {
        let output = self.output(args);
        let (stdout, stderr) = (utf8(output.stdout), utf8(output.stderr));
        assert_eq!(output.status.code(), Some(1), "trike {args:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && !stderr.contains("panicked"), "trike {args:?}: {stderr}");
        (stdout, stderr)
    }

    /// The logits of `ids`, `[ids][vocabulary]`, and their shape.
    pub(crate) fn logits(&self, model: &str, ids: &[u32], more: &[&str]) -> (Vec<usize>, Vec<f32>) {
        let out = self.path("logits.npy");
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let ids = ids.join(",");
        let mut args = vec!["logits", "-m", model, "--ids", &ids, "-o", &out];
        args.extend(more);
        self.stdout(&args);
        npy(&std::fs::read(out).expect("the file"))
    }
}

pub(crate) fn utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

pub(crate) fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().expect("a UTF-8 path")
}

/// Shared data, or `None` if it is missing.
pub(crate) fn shared(rel: &str) -> Option<String> {
    trike_testkit::shared(rel).map(text)
}

/// The bundled model.
pub(crate) fn tiny() -> String {
    format!("{}/models/tiny", repository())
}

pub(crate) fn repository() -> String {
    text(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository"))
}

/// An independent reader of a matrix of f32.
fn npy(bytes: &[u8]) -> (Vec<usize>, Vec<f32>) {
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let (header, body) = bytes[10..].split_at(len);
    let header = std::str::from_utf8(header).expect("ASCII");
    assert!(header.contains("'descr': '<f4'") && header.contains("'fortran_order': False"), "{header}");
    let shape = header.split(['(', ')']).nth(1).expect("a shape");
    let shape: Vec<usize> = shape.split(',').map(|n| n.trim().parse().expect("a number")).collect();
    let values: Vec<f32> =
        body.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect();
    assert_eq!(values.len(), shape.iter().product::<usize>());
    (shape, values)
}

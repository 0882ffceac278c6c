//! Other engines: `llama-bench` programs, which time the model file that Trike is timed with.

use std::env::consts::EXE_SUFFIX;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{fmt, fs};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// An engine that was timed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Name in the rows: that of its folder.
    pub name: String,
    /// Commit that it was built from, as it reports it.
    pub commit: String,
    /// Build number, as it reports it.
    pub build: u64,
}

/// A `llama-bench` program of llama.cpp or of a fork.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlamaBench {
    name: String,
    program: PathBuf,
}

/// A model file, and the numbers of tokens and threads to time.
#[derive(Clone, Copy, Debug)]
pub struct EngineJob<'a> {
    /// A GGUF file.
    pub model: &'a Path,
    /// Prompt tokens.
    pub prompt: usize,
    /// Generated tokens.
    pub generate: usize,
    /// Thread counts; each is timed with the prompt and with generation.
    pub threads: &'a [usize],
}

/// Speed of one phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineTime {
    /// `prefill` or `decode`.
    pub kind: &'static str,
    /// Number of threads.
    pub threads: usize,
    /// Seconds per token.
    pub seconds: f64,
}

/// A failure of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineError {
    /// The reason in one line, without paths; for records.
    pub reason: String,
    /// The program.
    pub program: PathBuf,
    /// End of its standard error.
    pub stderr: String,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.program.display(), self.reason)?;
        if self.stderr.is_empty() { f.write_str("; stderr is empty") } else { write!(f, "\n{}", self.stderr) }
    }
}

impl std::error::Error for EngineError {}

/// Lines of standard error in an [`EngineError`].
const STDERR_LINES: usize = 20;

/// Places of the program in a folder: an installed one, and the build folder of its sources.
const PLACES: [&str; 2] = ["llama-bench", "build/bin/llama-bench"];

/// An entry of the JSON output; its other fields are ignored.
#[derive(Deserialize)]
struct Entry {
    build_commit: String,
    build_number: u64,
    model_filename: String,
    n_prompt: usize,
    n_gen: usize,
    n_threads: usize,
    avg_ts: f64,
}

impl LlamaBench {
    /// The programs in a folder: its own one, or else one per folder in it, sorted by name.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read or has no program.
    pub fn find(folder: &Path) -> Result<Vec<Self>> {
        let folder = fs::canonicalize(folder).with_context(|| folder.display().to_string())?;
        if let Some(own) = Self::in_folder(&folder) {
            return Ok(vec![own]);
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            found.extend(Self::in_folder(&entry?.path()));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let places = PLACES.map(|place| format!("{place}{EXE_SUFFIX}")).join(" or ");
        ensure!(!found.is_empty(), "{}: no {places}, neither in it nor in its folders", folder.display());
        Ok(found)
    }

    fn in_folder(folder: &Path) -> Option<Self> {
        let program = PLACES.map(|place| folder.join(format!("{place}{EXE_SUFFIX}")));
        let program = program.into_iter().find(|program| program.is_file())?;
        Some(Self { name: folder.file_name()?.to_string_lossy().into_owned(), program })
    }

    /// Name in the rows.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Times each phase once per number of threads, on the CPU. The program warms up by itself.
    ///
    /// # Errors
    ///
    /// If the program cannot be run, fails, or does not report every speed that was asked for.
    pub fn time(&self, job: &EngineJob<'_>) -> Result<(Engine, Vec<EngineTime>), EngineError> {
        let fail = |reason: String, stderr: &[u8]| EngineError {
            reason,
            program: self.program.clone(),
            stderr: last_lines(stderr),
        };
        let threads: Vec<String> = job.threads.iter().map(ToString::to_string).collect();
        let (prompt, generate) = (job.prompt.to_string(), job.generate.to_string());
        let mut arguments: Vec<OsString> = vec!["-m".into(), job.model.into()];
        // Builds for GPUs would otherwise put the layers there.
        let options =
            ["-p", &prompt, "-n", &generate, "-t", &threads.join(","), "-r", "1", "-ngl", "0", "-o", "json"];
        arguments.extend(options.map(OsString::from));
        let output = Command::new(&self.program).args(arguments).stdin(Stdio::null()).output();
        let Output { status, stdout, stderr } =
            output.map_err(|e| fail(format!("cannot be run: {e}"), &[]))?;
        if !status.success() {
            return Err(fail(format!("ended with {status}"), &stderr));
        }
        self.parse(&stdout, job).map_err(|reason| fail(reason, &stderr))
    }

    fn parse(&self, stdout: &[u8], job: &EngineJob<'_>) -> Result<(Engine, Vec<EngineTime>), String> {
        let entries: Vec<Entry> = serde_json::from_slice(stdout)
            .map_err(|e| format!("its output is not the JSON of llama-bench: {e}"))?;
        if entries.iter().any(|entry| Path::new(&entry.model_filename) != job.model) {
            return Err("it reports another model file".to_owned());
        }
        let first = entries.first().ok_or("its output has no entries")?;
        let engine =
            Engine { name: self.name.clone(), commit: first.build_commit.clone(), build: first.build_number };
        let mut times = Vec::new();
        for (kind, tokens) in [("prefill", (job.prompt, 0)), ("decode", (0, job.generate))] {
            if tokens == (0, 0) {
                continue;
            }
            for &threads in job.threads {
                let found =
                    entries.iter().find(|e| (e.n_prompt, e.n_gen) == tokens && e.n_threads == threads);
                let speed = found.map(|entry| entry.avg_ts).filter(|&ts| ts.is_finite() && ts > 0.0);
                let speed = speed.ok_or_else(|| format!("no speed of {kind} with -t {threads}"))?;
                times.push(EngineTime { kind, threads, seconds: 1.0 / speed });
            }
        }
        Ok((engine, times))
    }
}

/// The last lines of a text, without control characters.
fn last_lines(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(STDERR_LINES)..];
    last.join("\n").chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    /// A folder with a script in the place of the program.
    fn fake(place: &str, script: &str) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(place);
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    /// Prints the arguments after the model on stderr, and four entries with the given fields.
    fn entries(commit: &str, model: &str, decode_speed: &str) -> String {
        let entry = |(prompt, generate): (usize, usize), threads: usize, speed: &str| {
            format!(
                r#"{{"build_commit": "{commit}", "build_number": 7, "model_filename": "{model}", "n_prompt": {prompt},
                "n_gen": {generate}, "n_threads": {threads}, "avg_ts": {speed}, "samples_ts": [{speed}]}}"#
            )
        };
        let all = [
            entry((64, 0), 1, "100.0"),
            entry((0, 16), 1, decode_speed),
            entry((64, 0), 2, "160"),
            entry((0, 16), 2, "32.0"),
        ];
        format!("model=$2\nshift 2\necho \"$@\" >&2\ncat <<END\n[{}]\nEND\n", all.join(","))
    }

    fn job() -> EngineJob<'static> {
        EngineJob { model: Path::new("m.gguf"), prompt: 64, generate: 16, threads: &[1, 2] }
    }

    /// One test, because a program that another thread's child still holds open for writing cannot be run.
    #[test]
    fn programs_are_run_and_their_faults_named() {
        let folder = fake("a/build/bin/llama-bench", &entries("abc123", "$model", "20.5"));
        let [program] = &LlamaBench::find(folder.path()).unwrap()[..] else { panic!("one program") };
        let (engine, times) = program.time(&job()).unwrap();
        assert_eq!(engine, Engine { name: "a".into(), commit: "abc123".into(), build: 7 });
        let time = |kind, threads, speed: f64| EngineTime { kind, threads, seconds: 1.0 / speed };
        let want = [
            time("prefill", 1, 100.0),
            time("prefill", 2, 160.0),
            time("decode", 1, 20.5),
            time("decode", 2, 32.0),
        ];
        assert_eq!(times, want);
        let prefill = program.time(&EngineJob { generate: 0, threads: &[2], ..job() }).unwrap().1;
        assert_eq!(prefill, want[1..2]);

        let table = [
            ("echo no such model >&2; exit 3".to_owned(), "ended with exit status: 3", "no such model"),
            ("echo rubbish; echo warned >&2".to_owned(), "not the JSON of llama-bench", "warned"),
            ("echo '[]'".to_owned(), "no entries", "stderr is empty"),
            (
                entries("abc", "$model", "-1"),
                "no speed of decode with -t 1",
                "-p 64 -n 16 -t 1,2 -r 1 -ngl 0",
            ),
            (entries("abc", "$model", "0"), "no speed of decode with -t 1", "-o json"),
            (entries("abc", "other.gguf", "20"), "another model file", "-p 64"),
        ];
        for (script, reason, stderr) in table {
            let folder = fake("llama-bench", &script);
            let program = &LlamaBench::find(folder.path()).unwrap()[0];
            let error = program.time(&job()).unwrap_err();
            assert!(error.reason.contains(reason) && !error.reason.contains('\n'), "{error}");
            let text = error.to_string();
            let path = folder.path().canonicalize().unwrap().join("llama-bench");
            assert!(text.contains(stderr) && text.contains(&path.display().to_string()), "{text}");
            assert!(!error.reason.contains(&path.display().to_string()), "records have no paths");
        }
        let folder = fake("llama-bench", "");
        let program = LlamaBench::find(folder.path()).unwrap().remove(0);
        fs::remove_file(folder.path().join("llama-bench")).unwrap();
        assert!(program.time(&job()).unwrap_err().reason.starts_with("cannot be run: "));
    }

    #[test]
    fn programs_are_found_in_a_folder_or_in_its_folders() {
        let folder = tempfile::tempdir().unwrap();
        let refused = LlamaBench::find(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("no llama-bench or build/bin/llama-bench"), "{refused}");
        assert!(LlamaBench::find(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
        for place in ["llama.cpp/build/bin", "ik_llama.cpp", "sources"] {
            fs::create_dir_all(folder.path().join(place)).unwrap();
        }
        for place in ["llama.cpp/build/bin/llama-bench", "ik_llama.cpp/llama-bench", "llama-bench.txt"] {
            fs::write(folder.path().join(place), "").unwrap();
        }
        let names = |folder: &Path| -> Vec<String> {
            LlamaBench::find(folder).unwrap().iter().map(|program| program.name().to_owned()).collect()
        };
        assert_eq!(names(folder.path()), ["ik_llama.cpp", "llama.cpp"]);
        assert_eq!(names(&folder.path().join("llama.cpp")), ["llama.cpp"]);
    }

    #[test]
    fn long_complaints_are_cut() {
        let text: String = (0..100).map(|i| format!("line {i}\r\n")).collect();
        let kept = last_lines(text.as_bytes());
        assert!(kept.starts_with("line 80\n") && kept.ends_with("line 99"), "{kept}");
        assert_eq!(last_lines(b"\x1b[31mred"), "[31mred");
    }
}

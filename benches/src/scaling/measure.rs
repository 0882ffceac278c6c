//! Runs of ranks that MPI starts.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Exchange;

/// Tokens of a unit, of which a rank has at least one.
const UNIT: u64 = 512;
/// Tokens of a row.
const ROW: u64 = 128;
/// Units of a step of strong scaling, so that four ranks have one each.
const UNITS: u64 = 4;
/// Steps of a run: local steps are exchanged once.
const STEPS: u64 = 16;

/// What is started.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The command `trike`, built with the feature `mpi`.
    pub trike: PathBuf,
    /// The example `exchange` of `trike-comm`.
    pub exchange: PathBuf,
    /// A folder with `config.json` and `tokenizer.json`.
    pub model: PathBuf,
}

/// How the work of a step grows with the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// All ranks share the same tokens.
    Strong,
    /// Each rank has the same tokens.
    Weak,
}

/// A kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Setting {
    /// What is exchanged.
    pub exchange: Exchange,
    /// How the work grows.
    pub scaling: Scaling,
    /// Ranks.
    pub ranks: usize,
}

impl Setting {
    /// Tokens of all ranks per step.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        UNIT * match self.scaling {
            Scaling::Strong => UNITS,
            Scaling::Weak => self.ranks as u64,
        }
    }

    /// Tokens of a rank per step, in the mean.
    #[must_use]
    pub fn tokens_per_rank(&self) -> u64 {
        self.tokens() / self.ranks.max(1) as u64
    }
}

/// A run, per rank and step, in the mean over both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its kind.
    pub setting: Setting,
    /// Seconds.
    pub seconds: f64,
    /// Seconds in which a rank has run.
    pub processor_seconds: f64,
    /// Seconds in which a rank has waited for messages.
    pub waiting_seconds: f64,
    /// Messages that a rank has sent.
    pub messages: f64,
    /// Bytes that a rank has sent.
    pub bytes: f64,
}

/// A message or a sum of ranks without training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Bytes of a message, which takes `seconds` from one rank to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_bytes: Option<u64>,
    /// Elements of vectors that are added up on all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_elements: Option<u64>,
    /// Ranks.
    pub ranks: usize,
    /// Seconds: the median.
    pub seconds: f64,
    /// Seconds: the first decile.
    pub fast: f64,
}

/// Starts ranks.
fn mpirun(ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    // A container's only user is root, and a small machine has fewer cores than ranks.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["--oversubscribe", "-n", &ranks.to_string()]);
    command
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} ended with {}: {err}{out}", output.status);
    Ok(out.into_owned())
}

/// The probes of so many ranks.
///
/// # Errors
///
/// A program that cannot be started, fails or prints something else.
pub fn probe(programs: &Programs, ranks: usize) -> Result<Vec<Probe>> {
    let text = output(mpirun(ranks).arg(&programs.exchange))?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).with_context(|| format!("from the probe: {line}"))).collect()
}

/// Writes the configuration of a run, and the text and the model that it reads.
fn prepare(programs: &Programs, dir: &Path, setting: Setting) -> Result<PathBuf> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for file in ["config.json", "tokenizer.json"] {
        let from = programs.model.join(file);
        fs::copy(&from, dir.join(file)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let mut text = String::new();
    for i in 0..400 {
        let _ = write!(text, "Once there were {i} cats and {} dogs. They were happy.<|endoftext|>", 3 * i);
    }
    fs::write(dir.join("text.txt"), text)?;
    let config = dir.join("run.toml");
    fs::write(
        &config,
        format!(
            "base_model_config = 'config.json'\ntokenizer = 'tokenizer.json'\nteacher = 'none'\noutput_dir = 'out'\n\
             datasets = [{{ path = 'text.txt' }}]\nval_set_size = 0\nmax_steps = {STEPS}\nsequence_len = {ROW}\n\
             micro_batch_size = {}\ngradient_accumulation_steps = 1\n{}",
            setting.tokens() / ROW,
            setting.exchange.config()
        ),
    )?;
    Ok(config)
}

/// A training in the folder `dir`, with one thread per rank.
///
/// # Errors
///
/// As [`probe`].
pub fn train(programs: &Programs, dir: &Path, setting: Setting) -> Result<Run> {
    let config = prepare(programs, dir, setting)?;
    let mut command = mpirun(setting.ranks);
    command.arg(&programs.trike).arg("train").arg(config).args(["-q", "--json", "-t", "1"]);
    let text = output(&mut command)?;
    let report: Value =
        serde_json::from_str(text.trim()).with_context(|| format!("from trike train: {text}"))?;
    let of_ranks = |name: &str| {
        report["ranks"][name].as_f64().with_context(|| format!("no ranks.{name} in the report: {report}"))
    };
    let (steps, ranks) = (STEPS as f64, setting.ranks as f64);
    let (seconds, waiting_seconds) =
        (of_ranks("step_seconds")? / steps, of_ranks("waiting_seconds")? / steps);
    Ok(Run {
        setting,
        seconds,
        processor_seconds: of_ranks("processor_seconds")? / steps,
        waiting_seconds,
        messages: of_ranks("sent_messages")? / steps / ranks,
        bytes: of_ranks("sent_bytes")? / steps / ranks,
    })
}

/// The number of weights that are trained.
///
/// # Errors
///
/// As [`probe`].
pub fn parameters(programs: &Programs, dir: &Path) -> Result<u64> {
    let setting = Setting { exchange: Exchange::Exact, scaling: Scaling::Weak, ranks: 1 };
    let config = prepare(programs, dir, setting)?;
    let text = output(
        Command::new(&programs.trike).arg("train").arg(config).args(["-q", "--check", "--json", "-t", "1"]),
    )?;
    let plan: Value =
        serde_json::from_str(text.trim()).with_context(|| format!("from trike train: {text}"))?;
    plan["parameters"].as_u64().with_context(|| format!("no parameters in {plan}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strong_scaling_shares_tokens_and_weak_scaling_adds_them() {
        let of = |scaling, ranks| Setting { exchange: Exchange::Exact, scaling, ranks }.tokens_per_rank();
        assert_eq!([1, 2, 4].map(|ranks| of(Scaling::Strong, ranks)), [2048, 1024, 512]);
        assert_eq!([1, 2, 4].map(|ranks| of(Scaling::Weak, ranks)), [512; 3]);
    }

    #[test]
    fn probes_are_read_from_lines() {
        let line = "{\"message_bytes\":64,\"ranks\":2,\"seconds\":1.5e-6,\"fast\":1e-6}";
        let probe: Probe = serde_json::from_str(line).expect("a probe");
        let expected =
            Probe { message_bytes: Some(64), sum_elements: None, ranks: 2, seconds: 1.5e-6, fast: 1e-6 };
        assert_eq!(probe, expected);
    }
}

//! Engines in Python: a process that takes a step for each line it reads, and answers with its seconds and the loss.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

use crate::{Engine, ids};

const SCRIPT: &str = include_str!("rivals.py");

pub(crate) struct Python {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    seconds: f64,
}

impl Python {
    /// Starts it; it has taken a first step when this returns.
    pub(crate) fn new(python: &str, name: &str, threads: usize) -> Result<Self> {
        let threads = threads.to_string();
        let mut child = Command::new(python)
            .args(["-c", SCRIPT, name, &threads])
            .env("OMP_NUM_THREADS", &threads)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{python} does not start"))?;
        let to = child.stdin.take().context("no input")?;
        let from = BufReader::new(child.stdout.take().context("no output")?);
        let mut engine = Self { child, to, from, seconds: f64::NAN };
        let ids: Vec<String> = ids().iter().map(u32::to_string).collect();
        engine.tell(&ids.join(" "))?;
        engine.step()?;
        Ok(engine)
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        writeln!(self.to, "{line}")?;
        Ok(self.to.flush()?)
    }
}

impl Engine for Python {
    fn step(&mut self) -> Result<f64> {
        self.tell("step")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let (seconds, loss) = line.trim().split_once(' ').with_context(|| format!("it said {line:?}"))?;
        self.seconds = seconds.parse()?;
        Ok(loss.parse()?)
    }

    fn seconds(&self) -> Option<f64> {
        Some(self.seconds)
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

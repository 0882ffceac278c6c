//! The calls of cargo that compile, as values: a step runs its calls, and [`units`](crate::units) asks cargo what each
//! of them would compile.
//!
//! All calls that compile the workspace start from [`Call::workspace`]. Cargo unites the features of the selected
//! packages, so a call with another selection compiles CubeCL and everything above it once more.

use crate::workspace::Workspace;
use anyhow::Result;
use xshell::{Cmd, cmd};

/// Features of the steps that run the workspace: the runtime with a software driver, also for Candle modules, and
/// downloads. `features` and `readme` cover the default features.
const FEATURES: &str = "trike-cli/wgpu,trike-cli/hub,trike-candle/wgpu";

/// One call of cargo.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The subcommand, and the arguments that select what is compiled.
    words: Vec<String>,
    /// What is passed on to Clippy, rustdoc or the test binaries.
    passed_on: Vec<String>,
}

impl Call {
    /// A subcommand for the packages of the workspace, with the features of the tests.
    ///
    /// Without `trike-py`: the features of its dependencies differ, and with it in the selection they differ for all
    /// packages. `wheel` builds it alone.
    pub(crate) fn workspace(verb: &str) -> Self {
        Self::new(verb).and(["--workspace", "--exclude", "trike-py", "--features", FEATURES])
    }

    /// A subcommand for the packages of the workspace with all their features.
    pub(crate) fn all_features(verb: &str) -> Self {
        Self::new(verb).and(["--workspace", "--all-features"])
    }

    /// A subcommand for one package, with its default features.
    pub(crate) fn package(verb: &str, name: &str) -> Self {
        Self::new(verb).and(["-p", name])
    }

    fn new(verb: &str) -> Self {
        Self { words: vec![verb.to_owned(), "--locked".to_owned()], passed_on: Vec::new() }
    }

    /// With more arguments.
    pub(crate) fn and<'a>(mut self, words: impl IntoIterator<Item = &'a str>) -> Self {
        self.words.extend(words.into_iter().map(str::to_owned));
        self
    }

    /// With arguments behind `--`.
    pub(crate) fn passing_on<'a>(mut self, words: impl IntoIterator<Item = &'a str>) -> Self {
        self.passed_on.extend(words.into_iter().map(str::to_owned));
        self
    }

    /// With the features of dev-dependencies, which cargo unites with the others only where a test is built: the smallest one.
    ///
    /// Without them a build of programs would compile everything again that the tests have compiled.
    pub(crate) fn with_dev_features(self) -> Self {
        self.and(["--test", "isa"])
    }

    /// What is selected, without the subcommand.
    pub(crate) fn selection(&self) -> &[String] {
        &self.words[1..]
    }

    /// The subcommand whose units this call compiles.
    pub(crate) fn verb(&self) -> &str {
        // Clippy is a `check` with another compiler.
        if self.words[0] == "clippy" { "check" } else { &self.words[0] }
    }

    /// The command, to run as it is.
    pub(crate) fn command<'a>(&self, ws: &'a Workspace) -> Cmd<'a> {
        let words = &self.words;
        let command = cmd!(ws.sh, "cargo {words...}");
        if self.passed_on.is_empty() { command } else { command.arg("--").args(&self.passed_on) }
    }

    /// Runs the call.
    pub(crate) fn run(&self, ws: &Workspace) -> Result<()> {
        Ok(self.command(ws).quiet().run()?)
    }
}

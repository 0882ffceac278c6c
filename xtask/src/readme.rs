//! Checks the two commands of the README: one generates text, one runs the tests.

use crate::cargo::Call;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::process::{Command, Stdio};

const HEADING: &str = "## Two commands";
/// The second command, which the `test` step runs.
const TEST_COMMAND: &str = "cargo xtask test";

/// What the README's first command compiles.
pub(crate) fn call() -> Call {
    Call::package("build", "trike-cli").and(["--release", "--bin", "trike"])
}

/// Runs the README's first command as written and checks that it prints text and a speed.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let command = run_command(&ws.sh.read_file("README.md")?)?;
    println!("$ {command}");
    let output = Command::new("sh")
        .args(["-c", &command])
        .current_dir(&ws.root)
        .stdin(Stdio::null())
        .output()
        .context("cannot start sh")?;
    let (story, report) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{story}");
    println!("{report}");
    ensure!(output.status.success(), "the README's run command ended with {}", output.status);
    let words = story.split_whitespace().count();
    ensure!(words >= 16, "the README's run command printed {words} words, expected at least 16");
    let speed = report.lines().rev().find(|l| l.contains("tokens per second") || l.contains("tok/s"));
    let speed = speed.context("the README's run command did not end with tokens per second on stderr")?;
    Ok(speed.trim().to_owned())
}

/// Reads the two `sh` blocks of the section: the first, which is returned, must run the model; the second must be the
/// test command.
fn run_command(readme: &str) -> Result<String> {
    let section = readme.lines().skip_while(|l| *l != HEADING).skip(1).take_while(|l| !l.starts_with("## "));
    let mut blocks: Vec<String> = Vec::new();
    let mut inside = false;
    for line in section {
        match line {
            "```sh" if !inside => {
                blocks.push(String::new());
                inside = true;
            }
            "```" => inside = false,
            _ if inside => {
                let block = blocks.last_mut().context("a block was opened")?;
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    ensure!(!inside, "README.md: a block under `{HEADING}` is not closed");
    let [run, test] = &blocks[..] else {
        anyhow::bail!("README.md: expected 2 sh blocks under `{HEADING}`, got {}", blocks.len());
    };
    let (run, test) = (run.trim(), test.trim());
    ensure!(
        run.starts_with("cargo run --release ") && run.contains(" -- run "),
        "README.md: the first block under `{HEADING}` must be `cargo run --release … -- run …`, got `{run}`"
    );
    ensure!(
        test == TEST_COMMAND,
        "README.md: the second block under `{HEADING}` must be `{TEST_COMMAND}`, got `{test}`"
    );
    Ok(run.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# T\n## Two commands\nTell:\n```sh\ncargo run --release -p trike-cli -- run -p \"Hi\"\n```\n\
                        Test:\n```sh\ncargo xtask test\n```\n## Next\n```sh\nrm\n```\n";

    #[test]
    fn both_commands_are_found() {
        let expected = "cargo run --release -p trike-cli -- run -p \"Hi\"";
        assert_eq!(run_command(GOOD).unwrap(), expected);
    }

    #[test]
    fn a_missing_section_block_or_command_is_an_error() {
        for (from, to, message) in [
            ("## Two commands", "## Commands", "got 0"),
            ("```sh\ncargo xtask test\n```\n", "", "got 1"),
            ("cargo xtask test", "cargo test", "got `cargo test`"),
            ("cargo run --release", "echo", "got `echo"),
            (" -- run ", " -- inspect ", "got `cargo run"),
            ("cargo xtask test\n```", "cargo xtask test", "not closed"),
        ] {
            let changed = GOOD.replacen(from, to, 1);
            assert_ne!(changed, GOOD);
            let error = run_command(&changed).unwrap_err().to_string();
            assert!(error.contains(message), "{from} -> {to}: {error}");
        }
    }
}

//! Ranks that MPI starts.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use crate::cargo::Call;
use crate::workspace::Workspace;

/// The examples `mpi` and `exchange`, and the command, with MPI.
pub(crate) fn call() -> Call {
    let call = Call::workspace("build").and(["--features", "trike-cli/mpi", "--bin", "trike"]);
    call.and(["--example", "mpi", "--example", "exchange"]).with_dev_features()
}

/// Runs the example `mpi` of `trike-comm` and the command as one, two and four ranks: all must have the same sum and train the same
/// weights to the bit, pipelines and divided matrices those of one process, and write the text of one process.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    // A container's only user is root, and a small machine has fewer cores than ranks.
    let _root = ws.sh.push_env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    let _confirm = ws.sh.push_env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    call().run(ws)?;
    let sum = sums(ws)?;
    exchange(ws)?;
    texts(ws)?;
    weights(ws)?;
    Ok(format!(
        "1, 2 and 4: {sum}, one text, and the same weights; pipelines and divided matrices train those of one process"
    ))
}

fn sums(ws: &Workspace) -> Result<String> {
    let program = ws.metadata.target_directory.as_std_path().join("debug/examples/mpi");
    let mut first = None;
    for ranks in ["1", "2", "4"] {
        let output = cmd!(ws.sh, "mpirun --oversubscribe -n {ranks} {program}").quiet().read()?;
        let sums: Vec<&str> =
            output.lines().filter_map(|line| line.split_once("sum ")).map(|(_, sum)| &sum[..16]).collect();
        ensure!(sums.len().to_string() == ranks, "{ranks} ranks printed: {output}");
        let first = first.get_or_insert_with(|| sums[0].to_owned());
        ensure!(sums.iter().all(|sum| sum == first), "one rank had {first}, {ranks} ranks: {output}");
    }
    first.context("no ranks")
}

/// Times of messages between two ranks: only that they are printed.
fn exchange(ws: &Workspace) -> Result<()> {
    let program = ws.metadata.target_directory.as_std_path().join("debug/examples/exchange");
    let output = cmd!(ws.sh, "mpirun --oversubscribe -n 2 {program}").quiet().read()?;
    let lines = output.lines().filter(|line| line.contains("\"ranks\":2,\"seconds\":"));
    ensure!(lines.count() > 3, "two ranks printed: {output}");
    Ok(())
}

/// Compares the text of `trike run --parallel` with that of one process.
fn texts(ws: &Workspace) -> Result<()> {
    let command = ws.metadata.target_directory.as_std_path().join("debug/trike");
    // Sampled: an equal text takes equal logits, and not only equal largest ones.
    let text =
        ["run", "-q", "-m", "models/tiny", "-p", "Once upon a time", "-n", "60", "-t", "1", "--seed", "7"];
    let one = cmd!(ws.sh, "{command} {text...}").quiet().read()?;
    ensure!(one.len() > 100, "one process wrote: {one}");
    for parallel in ["tensor", "pipeline"] {
        for ranks in ["1", "2", "4"] {
            let run =
                cmd!(ws.sh, "mpirun --oversubscribe -n {ranks} {command} {text...} --parallel {parallel}");
            let several = run.quiet().read()?;
            ensure!(several == one, "{ranks} ranks, {parallel}: {several}\none process: {one}");
        }
        // No division of two key/value heads or four layers: refused by one rank, with the exit code of wrong usage.
        let run = cmd!(ws.sh, "mpirun --oversubscribe -n 5 {command} {text...} --parallel {parallel}");
        let output = run.quiet().ignore_status().output()?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(2) && message.matches("error: ").count() == 1,
            "5 ranks, {parallel}: {:?}, {message}",
            output.status.code()
        );
    }
    Ok(())
}

/// Steps of four units of 512 tokens, from random weights.
const RUN: &str = "base_model_config = 'config.json'\ntokenizer = 'tokenizer.json'\nteacher = 'none'\nmax_steps = 3\n\
                   sequence_len = 128\nmicro_batch_size = 16\ngradient_accumulation_steps = 1\nval_set_size = 0.1\n\
                   datasets = [{ path = 'text.txt' }]\n";

/// Compares the weights that ranks train.
fn weights(ws: &Workspace) -> Result<()> {
    let target = ws.metadata.target_directory.as_std_path();
    let (command, dir) = (target.join("debug/trike"), target.join("ranks"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    for file in ["config.json", "tokenizer.json"] {
        fs::copy(ws.metadata.workspace_root.as_std_path().join("models/tiny").join(file), dir.join(file))?;
    }
    let sentence = |i: usize| format!("Once there were {i} cats and {} dogs. They were happy.", 3 * i);
    fs::write(dir.join("text.txt"), (0..60).map(sentence).collect::<Vec<_>>().join("<|endoftext|>"))?;
    let configured = |name: &str, more: &str| -> Result<PathBuf> {
        let config = dir.join(format!("{name}.toml"));
        fs::write(&config, format!("{RUN}output_dir = '{name}'\n{more}"))?;
        Ok(config)
    };
    let written = |name: &str| fs::read(dir.join(name).join("model.safetensors"));
    let train = |name: &str, ranks: &str, more: &str| -> Result<Vec<u8>> {
        let config = configured(name, more)?;
        cmd!(ws.sh, "mpirun --oversubscribe -n {ranks} {command} train {config} -q").quiet().read()?;
        Ok(written(name)?)
    };
    let pipeline = "parallel = 'pipeline'\n";
    let config = configured("machine", pipeline)?;
    cmd!(ws.sh, "{command} train {config} -q").quiet().read()?;
    let machine = written("machine")?;
    // As written, so equal to the last digit.
    let losses = |name: &str| -> Result<String> {
        let report = fs::read_to_string(dir.join(name).join("report.json"))?;
        let of = |at: &str| Some(report.split_once(&format!("\"{at}\":"))?.1.split_once('}')?.0.to_owned());
        of("start").zip(of("best")).map(|(start, best)| start + &best).context("no losses in report.json")
    };
    let of_machine = losses("machine")?;
    for parallel in ["pipeline", "tensor"] {
        for ranks in ["1", "2", "4"] {
            let name = format!("{parallel}-{ranks}");
            let weights = train(&name, ranks, &format!("parallel = '{parallel}'\n"))?;
            let found = losses(&name)?;
            ensure!(
                weights == machine && found == of_machine,
                "{parallel}, {ranks} ranks: losses {found}, one machine {of_machine}; equal weights: {}",
                weights == machine
            );
        }
    }
    // The model has four blocks: one error for all ranks, with the exit code of wrong usage.
    let config = configured("pipeline-5", pipeline)?;
    let run = cmd!(ws.sh, "mpirun --oversubscribe -n 5 {command} train {config} -q");
    let output = run.quiet().ignore_status().output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(2) && message.matches("error: ").count() == 1,
        "a pipeline of 5 ranks: {:?}, {message}",
        output.status.code()
    );
    for more in ["", "codec = 'ternary'\n"] {
        let mut first: Option<Vec<u8>> = None;
        for ranks in ["1", "2", "4"] {
            let weights = train(&format!("ranks-{ranks}-{}", more.len()), ranks, more)?;
            let first = first.get_or_insert_with(|| weights.clone());
            // With a codec, other messages are sent on another number of ranks.
            let is_equal = *first == weights;
            ensure!(
                is_equal == (more.is_empty() || ranks == "1"),
                "{ranks} ranks, {more}: equal weights: {is_equal}"
            );
        }
    }
    Ok(())
}

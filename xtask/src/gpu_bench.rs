//! GPU benchmarks: runs the benchmarks of the GPU test binary, stores their records, and renders the tables of the
//! book.
//!
//! On a machine with only a GPU driver, run the bundle instead and copy its records into `benches/records/gpu`.

use crate::gpu_test::drivers;
use crate::llvm;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::process::Command;
use xshell::cmd;

/// Time the kernels on a device, record the results, and update the performance chapter from the newest record.
#[derive(Parser)]
#[command(name = "cargo xtask bench-report --gpu", bin_name = "cargo xtask bench-report --gpu")]
struct Options {
    /// Device, such as `cuda:0`, `hip:0`, `vulkan:0` or `wgpu:0`; by default the first GPU: through CUDA or HIP if
    /// this machine has the driver, else through Vulkan.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only problems whose name contains this; nothing is recorded.
    #[arg(long)]
    filter: Option<String>,
    /// A few tiny problems, also on software drivers; nothing is recorded.
    #[arg(long)]
    tiny: bool,
    /// Only render the tables of the chapter from the newest record, without measuring.
    #[arg(long, conflicts_with_all = ["device", "filter", "tiny"])]
    render: bool,
}

/// The subcommand.
pub(crate) fn run(ws: &Workspace, options: &[String]) -> Result<()> {
    let name = "cargo xtask bench-report --gpu".to_owned();
    let options = Options::parse_from(std::iter::once(&name).chain(options));
    if !options.render {
        let mut arguments = vec!["bench", "--device", &options.device];
        arguments.extend(options.filter.iter().flat_map(|filter| ["--filter", filter.as_str()]));
        if options.tiny {
            arguments.extend([
                "--tiny",
                "--software",
                "--windows",
                "3",
                "--window-ms",
                "5",
                "--rotate-mib",
                "1",
            ]);
        }
        let record = binary(ws, &runtimes(ws, &options), &arguments)?;
        print!("{record}");
        if options.tiny || options.filter.is_some() {
            println!("not recorded: only full runs are recorded");
            return Ok(());
        }
        let folder = ws.root.join("benches/records/gpu");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join(file_name(&record).context("the first line of the record has no device")?);
        std::fs::write(&file, record).with_context(|| format!("cannot write {}", file.display()))?;
        println!("recorded: {}", file.display());
    }
    print!("{}", binary(ws, &runtimes(ws, &options), &["report"])?);
    Ok(())
}

/// The runtimes to build for a device.
fn runtimes(ws: &Workspace, options: &Options) -> Vec<String> {
    let runtime = options.device.split(':').next().unwrap_or_default();
    match runtime {
        "cuda" | "hip" | "metal" | "vulkan" => vec![runtime.to_owned()],
        // A build with SPIR-V does not open software drivers.
        "auto" if !options.tiny => {
            let mut found = drivers(ws);
            found.push("vulkan".to_owned());
            found
        }
        _ => Vec::new(),
    }
}

/// Builds the test binary in release mode, runs it in the root, and returns its stdout.
fn binary(ws: &Workspace, runtimes: &[String], arguments: &[&str]) -> Result<String> {
    let features: String =
        runtimes.iter().fold("rivals".to_owned(), |all, runtime| format!("{all},trike-cube/{runtime}"));
    let _stubs = llvm::stubbed(ws)?;
    let run = cmd!(
        ws.sh,
        "cargo run --quiet --release --locked -p trike-gpu-test --features {features} --bin trike-gpu-test -- {arguments...}"
    );
    // Not through the shell helper: its echo of the command would precede the record.
    let output = Command::from(run).stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "trike-gpu-test ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// File name from adapter, device and seconds since 1970, such as `nvidia-h200-vulkan-0-1795000000.jsonl`.
fn file_name(record: &str) -> Option<String> {
    let head = record.lines().next()?;
    let text = |key: &str| {
        let (_, rest) = head.split_once(&format!("\"{key}\":\""))?;
        rest.split('"').next()
    };
    let (_, date) = head.split_once("\"date\":")?;
    let date: String = date.chars().take_while(char::is_ascii_digit).collect();
    let name = format!("{} {} {date}", text("adapter")?, text("spec")?).to_lowercase();
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    Some(format!("{}.jsonl", parts.collect::<Vec<_>>().join("-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_named_after_device_and_time() {
        let head = r#"{"adapter":"NVIDIA H200","date":1795000000,"schema":1,"spec":"vulkan:0"}"#;
        let name = "nvidia-h200-vulkan-0-1795000000.jsonl";
        assert_eq!(file_name(head).as_deref(), Some(name));
        assert_eq!(file_name("{}"), None);
    }
}

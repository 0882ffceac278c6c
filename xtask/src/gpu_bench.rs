//! Figures of devices: the benchmarks of the GPU test binary, their records, and the tables of the book.
//!
//! A machine that only has a GPU runs the bundle instead; its records are copied into `benches/records/gpu`.

use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use clap::Parser;
use std::process::Command;

/// What the test binary is built with.
const FEATURES: &str = "trike-cube/vulkan,rivals";

/// Times the kernels on a device, records them, and shows the newest record in the chapter on performance.
#[derive(Parser)]
#[command(name = "cargo xtask bench-report --gpu", bin_name = "cargo xtask bench-report --gpu")]
struct Options {
    /// The device, as `vulkan:0`; the first one that is not software by default. CUDA and HIP need the bundle.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Only problems whose name contains this; nothing is recorded then.
    #[arg(long)]
    filter: Option<String>,
    /// A few tiny problems, on the host's driver too; nothing is recorded then.
    #[arg(long)]
    tiny: bool,
    /// Make the chapter's tables from the newest record, and measure nothing.
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
        // In a build with SPIR-V no software driver is opened.
        let features = if options.tiny { "rivals" } else { FEATURES };
        let record = binary(ws, features, &arguments)?;
        print!("{record}");
        if options.tiny || options.filter.is_some() {
            println!("not recorded: only a full run is");
            return Ok(());
        }
        let folder = ws.root.join("benches/records/gpu");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join(file_name(&record).context("the record's first line names no device")?);
        std::fs::write(&file, record).with_context(|| format!("cannot write {}", file.display()))?;
        println!("recorded: {}", file.display());
    }
    print!("{}", binary(ws, FEATURES, &["report"])?);
    Ok(())
}

/// Builds the test binary as users build theirs, runs it in the root, and returns what it prints.
fn binary(ws: &Workspace, features: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--release", "--locked", "-p", "trike-gpu-test", "--features"])
        .args([features, "--bin", "trike-gpu-test", "--"])
        .args(arguments)
        .current_dir(&ws.root)
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "trike-gpu-test ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// `nvidia-h200-vulkan-0-1795000000.jsonl`: adapter, device and seconds since 1970.
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

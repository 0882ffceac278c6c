//! Ranks that MPI starts.

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use crate::workspace::Workspace;

/// Runs the example `mpi` of `trike-comm` as one, two and four ranks, which must all have the same sum, to the bit.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    cmd!(ws.sh, "cargo build --quiet --locked -p trike-comm --features mpi --example mpi").run()?;
    let program = ws.metadata.target_directory.as_std_path().join("debug/examples/mpi");
    // A container's only user is root, and a small machine has fewer cores than ranks.
    let _root = ws.sh.push_env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    let _confirm = ws.sh.push_env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let mut first = None;
    for ranks in ["1", "2", "4"] {
        let output = cmd!(ws.sh, "mpirun --oversubscribe -n {ranks} {program}").quiet().read()?;
        let sums: Vec<&str> =
            output.lines().filter_map(|line| line.split_once("sum ")).map(|(_, sum)| &sum[..16]).collect();
        ensure!(sums.len().to_string() == ranks, "{ranks} ranks printed: {output}");
        let first = first.get_or_insert_with(|| sums[0].to_owned());
        ensure!(sums.iter().all(|sum| sum == first), "one rank had {first}, {ranks} ranks: {output}");
    }
    first.map(|sum| format!("1, 2 and 4: {sum}")).context("no ranks")
}

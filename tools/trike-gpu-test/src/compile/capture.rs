//! Kernels that Trike's host code launches on a device of a target.

use anyhow::Result;
use cubecl_runtime::id::KernelId;
use std::collections::HashSet;

use super::expect::is_kernel;
use crate::bench::counted::Counted;
use crate::record::{Launch, Recording};
use crate::session::Session;
use crate::suites;
use crate::tally::{Outcome, Tally};
use crate::target::{Family, Target};
use trike_cube::{CubeDevice, DeviceOptions, DeviceSpec, Runtime, Settings};

/// The kernels of one target, each form once.
pub(super) struct Captured {
    pub(super) target: Target,
    pub(super) launches: Vec<Launch>,
    /// Launches whose machine code is counted.
    pub(super) counted: Vec<CountedLaunch>,
    /// Failures of the suites on the recording device: a plan that fails there also fails on the real device.
    pub(super) tally: Tally,
}

/// The kernel of a problem whose machine code is counted.
pub(super) struct CountedLaunch {
    pub(super) problem: Counted,
    /// Index of the launch.
    pub(super) launch: usize,
    /// Settings of the launch at the size of the problem.
    pub(super) settings: Settings,
}

/// Runs all suites, and the plans for model shapes, on a recording device of a target.
pub(super) fn capture(target: Target, filter: Option<&str>) -> Result<Captured> {
    let recording = Recording::new(&target)?;
    let runtime = match target.family {
        Family::Cuda(_) => Runtime::Cuda,
        Family::Hip(_) => Runtime::Hip,
        Family::Metal => Runtime::Metal,
        Family::Vulkan => Runtime::Vulkan,
        Family::WebGpu | Family::WebGpuMinimal => Runtime::Wgpu,
    };
    let spec = DeviceSpec::Numbered(runtime, 0);
    let device = CubeDevice::over(recording.client(), spec, false, DeviceOptions::default());
    let mut launches: Vec<Launch> = Vec::new();
    let mut seen: HashSet<KernelId> = HashSet::new();
    let mut stopped = None;
    let mut tally = Tally::default();
    for suite in [suites::shapes as fn(&mut Session), suites::all] {
        // Taken after each case: a launch holds its kernel, and there are many launches of each form.
        let mut after = || match recording.take() {
            Ok(taken) => launches.extend(taken.into_iter().filter(|launch| seen.insert(launch.id.clone()))),
            Err(e) => stopped = Some(e),
        };
        let mut session = Session::recording(&device, &mut after).filtered(filter);
        suite(&mut session);
        tally.merge(session.finish());
    }
    if let Some(e) = stopped {
        return Err(e);
    }
    let mut counted = Vec::new();
    if matches!(target.family, Family::Cuda(_)) {
        for problem in Counted::all() {
            let name = format!("counted {} {}", problem.problem(), problem.kernel());
            if filter.is_some_and(|part| !name.contains(part)) {
                continue;
            }
            let launched = problem.launch(&device);
            let taken = recording.take()?;
            let of_problem =
                taken.iter().find(|l| problem.paths().iter().any(|end| is_kernel(l.path(), end)));
            let id = of_problem.map(|launch| launch.id.clone());
            launches.extend(taken.into_iter().filter(|launch| seen.insert(launch.id.clone())));
            let launch = launches.iter().position(|launch| Some(&launch.id) == id.as_ref());
            match (launched, launch) {
                (Ok(settings), Some(launch)) => counted.push(CountedLaunch { problem, launch, settings }),
                (Ok(_), None) => tally.add(&name, Outcome::Fail("launched none of its kernels".to_owned())),
                (Err(e), _) => tally.add(&name, Outcome::Fail(format!("{e:#}"))),
            }
        }
    }
    drop(device);
    recording.close();
    Ok(Captured { target, launches, counted, tally })
}

//! Kernels that Trike's host code launches on a device of a target.

use anyhow::Result;
use cubecl_runtime::id::KernelId;
use std::collections::HashSet;

use crate::record::{Launch, Recording};
use crate::session::Session;
use crate::suites;
use crate::tally::Tally;
use crate::target::{Family, Target};
use trike_cube::{Device, DeviceOptions, DeviceSpec, Runtime};

/// The kernels of one target, each form once.
pub(super) struct Captured {
    pub(super) target: Target,
    pub(super) launches: Vec<Launch>,
    /// Failures of the suites on the recording device: a plan that fails there also fails on the real device.
    pub(super) tally: Tally,
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
    let device = Device::over(recording.client(), spec, false, DeviceOptions::default());
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
    drop(device);
    recording.close();
    Ok(Captured { target, launches, tally })
}

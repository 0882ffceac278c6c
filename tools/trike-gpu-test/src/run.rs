//! The run phase: every suite on every device found, compared with CPU results.

use std::fmt::Write as _;
use std::time::Instant;

use trike_cube::{
    Capabilities, CubeDevice, DeviceInfo, DeviceOptions, DeviceSpec, Planes, Runtime, devices, is_linked,
};

use crate::session::Session;
use crate::share::Share;
use crate::suites;
use crate::tally::{Outcome, Tally};

/// Options of the run phase.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The runtimes to search for devices; empty for all linked ones.
    pub runtimes: Vec<Runtime>,
    /// Only cases whose name contains this.
    pub filter: Option<String>,
    /// The part of the cases to run on a software device, whose driver compiles for minutes; other devices run all of them.
    pub share: Option<Share>,
    /// Whether a run without any device fails.
    pub device_required: bool,
}

/// Runs the suites; `say` is called with a line for each device and for each runtime without one.
pub fn run(options: &Options, mut say: impl FnMut(&str)) -> Tally {
    let mut tally = Tally::default();
    let wanted = |runtime: &Runtime| options.runtimes.is_empty() || options.runtimes.contains(runtime);
    let names = |linked: bool| {
        let runtimes = Runtime::ALL.into_iter().filter(|runtime| is_linked(*runtime) == linked);
        runtimes.map(Runtime::name).collect::<Vec<_>>().join(", ")
    };
    say(&format!("runtimes of this build: {}; not built in: {}", names(true), names(false)));
    let found: Vec<DeviceInfo> =
        devices().into_iter().filter(|d| runtime_of(d).is_some_and(|r| wanted(&r))).collect();
    for runtime in Runtime::ALL.iter().filter(|r| wanted(r)) {
        let there = found.iter().any(|d| runtime_of(d) == Some(*runtime));
        let reason = match (is_linked(*runtime), there) {
            (true, true) => continue,
            (true, false) => format!("no {runtime} device on this machine"),
            (false, _) => format!("this build has no {runtime} runtime"),
        };
        // Without explicit runtimes, only linked ones are reported.
        if is_linked(*runtime) || !options.runtimes.is_empty() {
            say(&format!("{runtime}: skipped, {reason}"));
            tally.skip(&reason, 1);
        }
    }
    for info in &found {
        match &info.capabilities {
            Ok(capabilities) => {
                say(&format!("{}: {}", info.spec, describe(capabilities)));
                tally.merge(device(info.spec, capabilities, options, &mut say));
            }
            Err(reason) => tally.add(&format!("open {}", info.spec), Outcome::Fail(reason.clone())),
        }
    }
    if found.is_empty() && options.device_required {
        tally.add("find a device", Outcome::Fail("no device found, but --device-required is set".to_owned()));
    }
    tally
}

fn runtime_of(info: &DeviceInfo) -> Option<Runtime> {
    match info.spec {
        DeviceSpec::Numbered(runtime, _) => Some(runtime),
        DeviceSpec::Auto => None,
    }
}

/// Runs every suite on one device. A software device runs twice, with and without the plane operations that it
/// supports but CubeCL does not report.
fn device(
    spec: DeviceSpec,
    capabilities: &Capabilities,
    options: &Options,
    say: &mut impl FnMut(&str),
) -> Tally {
    let mut tally = Tally::default();
    if capabilities.software {
        let fallen = fallback(capabilities);
        tally.add(
            &format!("{spec} is the software Vulkan driver"),
            fallen.map_or(Outcome::Pass, Outcome::Fail),
        );
    }
    let ways: &[Planes] =
        if capabilities.software { &[Planes::Forced, Planes::Off] } else { &[Planes::Advertised] };
    for &planes in ways {
        let device = match CubeDevice::open_with(spec, DeviceOptions::default().with_planes(planes)) {
            Ok(device) => device,
            Err(e) => {
                tally.add(&format!("open {spec}"), Outcome::Fail(e.to_string()));
                continue;
            }
        };
        let share = options.share.filter(|_| capabilities.software);
        let way = format!("planes {planes:?}");
        let mut session = Session::new(&device).filtered(options.filter.as_deref()).shared(share, &way);
        let start = Instant::now();
        suites::all(&mut session);
        let (seconds, slowest) = (start.elapsed().as_secs_f64(), session.slowest().to_vec());
        let done = session.finish();
        say(&format!("    planes {planes:?}: {done} in {seconds:.1} s"));
        for (time, case) in slowest.iter().filter(|(time, _)| time.as_secs_f64() > 1.0) {
            say(&format!("        {:.1} s: {case}", time.as_secs_f64()));
        }
        for (case, found) in done.failures() {
            say(&format!("    FAILED {case}\n        {found}"));
        }
        tally.merge(done);
    }
    tally
}

/// Checks that a software device is Mesa's Vulkan driver, which has the types of all cases.
fn fallback(capabilities: &Capabilities) -> Option<String> {
    let Capabilities { name, f16, max_bindings, .. } = capabilities;
    let vulkan = name.starts_with("llvmpipe") && *f16 && *max_bindings >= 24;
    (!vulkan).then(|| {
        format!(
            "the adapter is {name:?} with {max_bindings} buffers, f16 {f16}: expected llvmpipe through Vulkan"
        )
    })
}

/// One-line description of a device.
fn describe(c: &Capabilities) -> String {
    let mut text = c.name.clone();
    match c.planes {
        Some((least, most)) if least == most => {
            let _ = write!(text, ", planes of {least}");
        }
        Some((least, most)) => {
            let _ = write!(text, ", planes of {least} to {most}");
        }
        None => text += ", no plane operations reported",
    }
    let has =
        [(c.f16, "f16"), (c.i8, "i8 buffers"), (c.int8_mma, "int8 mma"), (c.async_copy, "async copies")];
    for (_, feature) in has.iter().filter(|(there, _)| *there) {
        let _ = write!(text, ", {feature}");
    }
    let _ = write!(text, ", {} KiB shared, {} buffers", c.max_shared_bytes >> 10, c.max_bindings);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_to_opengl_is_noticed() {
        let mut device = Capabilities::smallest();
        device.name = "llvmpipe (LLVM 15.0.6, 256 bits)".to_owned();
        device.f16 = true;
        device.max_bindings = 30;
        assert_eq!(fallback(&device), None);
        let mut opengl = device.clone();
        opengl.f16 = false;
        opengl.max_bindings = 14;
        assert!(fallback(&opengl).is_some());
        device.name = "NVIDIA H200".to_owned();
        assert!(fallback(&device).is_some_and(|found| found.contains("H200")));
    }

    #[test]
    fn a_runtime_that_is_not_there_is_a_skip_with_a_reason() {
        let options = Options { runtimes: vec![Runtime::Hip], ..Options::default() };
        let mut lines = Vec::new();
        let tally = run(&options, |line| lines.push(line.to_owned()));
        assert_eq!(tally.to_string(), "0 passed, 0 failed, 1 skipped", "{lines:?}");
        let required = Options { device_required: true, ..options };
        assert_eq!(run(&required, |_| {}).failures().len(), 1);
    }
}

//! The devices on which the tests run kernels.

use std::sync::OnceLock;

use trike_cube::{CubeDevice, CubeError, DeviceOptions, DeviceSpec, Planes, Runtime};
use trike_testkit::skip;

/// The software Vulkan driver, twice: with and without plane operations. Empty if there is no such driver, after one `skipped:`
/// line, which the test runner counts.
pub(crate) fn devices() -> Vec<CubeDevice> {
    [Planes::Forced, Planes::Off].into_iter().filter_map(device).collect()
}

/// One of [`devices`].
pub(crate) fn device(planes: Planes) -> Option<CubeDevice> {
    static OPEN: [OnceLock<Option<CubeDevice>>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    let device = OPEN[planes as usize].get_or_init(|| open(planes).ok()).clone();
    if device.is_none() {
        skip(if cfg!(feature = "wgpu") { "no Vulkan driver" } else { "built without the feature wgpu" });
    }
    device
}

/// The software driver twice, each with its own queue and memory. Memory is counted for the caller alone.
pub(crate) fn pair() -> Option<[CubeDevice; 2]> {
    let DeviceSpec::Numbered(runtime, index) = device(Planes::Off)?.spec() else { return None };
    let open = |index| {
        let options = DeviceOptions::default().with_planes(Planes::Off);
        CubeDevice::open_with(DeviceSpec::Numbered(runtime, index), options)
            .expect("the software driver, or its next number")
    };
    Some([open(index), open(index + 1)])
}

/// Software devices come last, so the last one of all; real devices are tested by `cargo xtask gpu-test`.
fn open(planes: Planes) -> Result<CubeDevice, CubeError> {
    let mut index = 0;
    loop {
        let spec = DeviceSpec::Numbered(Runtime::Wgpu, index);
        let device = CubeDevice::open_with(spec, DeviceOptions::default().with_planes(planes))?;
        if device.is_software() && device.name().contains("llvmpipe") && device.capabilities().f16 {
            return Ok(device);
        }
        index += 1;
    }
}

#[test]
fn the_driver_is_the_one_that_is_meant() {
    for device in devices() {
        assert!(device.name().contains("llvmpipe"), "{device:?}");
        assert!(device.is_software());
    }
}

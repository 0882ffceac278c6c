//! Training on a device against training on the host, on the software Vulkan driver.
#![cfg(feature = "gpu")]

mod commands;
mod gradients;
mod runs;

use trike_autodiff::CubeEngine;
use trike_cube::{CubeDevice, DeviceOptions, DeviceSpec, Planes, Runtime};
use trike_testkit::skip;

/// The software Vulkan driver; `None` after a line that the test runner counts.
fn software(options: DeviceOptions) -> Option<CubeEngine> {
    let open = |index| CubeDevice::open_with(DeviceSpec::Numbered(Runtime::Wgpu, index), options).ok();
    let found = (0..).map_while(open).find(|device| device.is_software() && device.capabilities().f16);
    if found.is_none() {
        skip("no Vulkan driver");
    }
    found.map(CubeEngine::new)
}

fn engine() -> Option<CubeEngine> {
    software(DeviceOptions::default().with_planes(Planes::Off))
}

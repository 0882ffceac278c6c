//! Device discovery.

use std::sync::{Mutex, PoisonError};

use cubecl::Device as RuntimeDevice;
use cubecl::device::{WgpuBackend, WgpuDevice, WgpuDeviceKind};

use super::{CubeDevice, DeviceOptions, DeviceSpec, Runtime};
use crate::capabilities::Capabilities;
use crate::error::{CubeError, Result};

/// A device found on this machine.
pub(super) struct Found {
    pub(super) device: RuntimeDevice,
    pub(super) spec: DeviceSpec,
    pub(super) software: bool,
}

/// Returns true if this build contains a runtime.
#[must_use]
pub fn is_linked(runtime: Runtime) -> bool {
    match runtime {
        Runtime::Cuda => cfg!(feature = "cuda"),
        Runtime::Hip => cfg!(feature = "hip"),
        Runtime::Metal => cfg!(feature = "metal"),
        Runtime::Vulkan => cfg!(feature = "vulkan"),
        Runtime::Wgpu => cfg!(feature = "wgpu"),
    }
}

/// A device of this machine, as listed by `trike doctor`.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The specification that opens it.
    pub spec: DeviceSpec,
    /// Features and limits, or the error message of opening it.
    pub capabilities: std::result::Result<Capabilities, String>,
}

/// All devices of this machine that this build can use, in the order in which `auto` tries them. Opens each device to query its
/// name.
///
/// A device available through both `vulkan` and `wgpu` is listed twice. Software drivers that a SPIR-V build rejects are
/// omitted.
#[must_use]
pub fn devices() -> Vec<DeviceInfo> {
    let specs = Runtime::ALL.into_iter().flat_map(|runtime| {
        (0..on_machine(runtime).len()).map(move |index| DeviceSpec::Numbered(runtime, index))
    });
    specs
        .filter_map(|spec| {
            let capabilities = match CubeDevice::open_with(spec, DeviceOptions::default()) {
                Ok(device) => Ok(device.capabilities().clone()),
                Err(CubeError::SoftwareSpirv { .. }) => return None,
                Err(e) => Err(e.to_string()),
            };
            Some(DeviceInfo { spec, capabilities })
        })
        .collect()
}

pub(super) fn find(spec: DeviceSpec) -> Result<Found> {
    match spec {
        DeviceSpec::Auto => {
            for runtime in Runtime::ALL {
                let hardware = on_machine(runtime).into_iter().enumerate().find(|(_, d)| !is_software(d));
                if let Some((index, device)) = hardware {
                    return Ok(Found { device, spec: DeviceSpec::Numbered(runtime, index), software: false });
                }
            }
            Err(CubeError::NoDevice { spec: spec.to_string(), available: 0 })
        }
        DeviceSpec::Numbered(runtime, index) => {
            if !is_linked(runtime) {
                return Err(CubeError::NotLinked { spec: spec.to_string(), runtime: runtime.name() });
            }
            let devices = on_machine(runtime);
            let available = devices.len();
            let wanted = runtime == Runtime::Wgpu && index == available;
            let again = devices.last().filter(|_| wanted).and_then(second_client);
            let device = devices.into_iter().nth(index).or(again);
            let device = device.ok_or_else(|| CubeError::NoDevice { spec: spec.to_string(), available })?;
            let software = is_software(&device);
            // With the feature, CubeCL passes SPIR-V to every Vulkan device, regardless of the runtime name it is opened with.
            if software && cfg!(feature = "vulkan") && matches!(device, RuntimeDevice::Wgpu(_)) {
                return Err(CubeError::SoftwareSpirv { spec: spec.to_string() });
            }
            Ok(Found { device, spec, software })
        }
    }
}

/// The devices of a runtime, software ones last.
fn on_machine(runtime: Runtime) -> Vec<RuntimeDevice> {
    if !is_linked(runtime) {
        return Vec::new();
    }
    match runtime {
        Runtime::Cuda => numbered(RuntimeDevice::cuda),
        Runtime::Hip => numbered(RuntimeDevice::rocm),
        Runtime::Metal => graphics(WgpuBackend::Metal),
        Runtime::Vulkan => graphics(WgpuBackend::Vulkan),
        Runtime::Wgpu => preferred(),
    }
}

/// The devices of the first graphics API with a GPU, or of the first with a software driver.
///
/// CubeCL's automatic choice is not used: without a Vulkan device it selects OpenGL, which lacks the types that the kernels need.
fn preferred() -> Vec<RuntimeDevice> {
    let apis: &[WgpuBackend] = if cfg!(target_os = "macos") {
        &[WgpuBackend::Metal]
    } else if cfg!(windows) {
        &[WgpuBackend::Vulkan, WgpuBackend::Dx12]
    } else {
        &[WgpuBackend::Vulkan]
    };
    let mut software = Vec::new();
    for found in apis.iter().map(|&api| graphics(api)) {
        if found.iter().any(|device| !is_software(device)) {
            return found;
        }
        if software.is_empty() {
            software = found;
        }
    }
    software
}

fn numbered<E>(named: impl Fn(usize) -> std::result::Result<RuntimeDevice, E>) -> Vec<RuntimeDevice> {
    (0..).map_while(|index| named(index).ok()).collect()
}

/// The devices of a graphics API. Queried once per process: a query initializes the drivers, and without a display Mesa's
/// device-select layer prints to stderr each time.
fn graphics(backend: WgpuBackend) -> Vec<RuntimeDevice> {
    static FOUND: Mutex<Vec<(WgpuBackend, Vec<RuntimeDevice>)>> = Mutex::new(Vec::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, devices)) = found.iter().find(|(asked, _)| *asked == backend) {
        return devices.clone();
    }
    let devices = ask(backend);
    found.push((backend, devices.clone()));
    devices
}

fn ask(backend: WgpuBackend) -> Vec<RuntimeDevice> {
    // One query per kind: devices are numbered separately for each kind.
    let kinds = [
        WgpuDeviceKind::DiscreteGpu(0),
        WgpuDeviceKind::IntegratedGpu(0),
        WgpuDeviceKind::VirtualGpu(0),
        WgpuDeviceKind::Other(0),
        WgpuDeviceKind::Cpu,
    ];
    kinds
        .into_iter()
        .flat_map(|kind| {
            let first = RuntimeDevice::Wgpu(WgpuDevice::new(kind).on(backend));
            let mut found = RuntimeDevice::enumerate(first.to_id());
            // Software adapters share one ID, which opens the first of them.
            found.dedup();
            found.into_iter().map(RuntimeDevice::from_id)
        })
        .collect()
}

/// A second client of the `wgpu` software driver, with its own queue and memory: CubeCL has one client per ID, and an ID that
/// leaves the graphics API open differs from one that names it.
///
/// Machines without a GPU have one software driver, but tests of several devices need two. It has the number after the last one and
/// is not listed.
fn second_client(last: &RuntimeDevice) -> Option<RuntimeDevice> {
    match last {
        RuntimeDevice::Wgpu(device)
            if device.kind == WgpuDeviceKind::Cpu && device.backend == WgpuBackend::Vulkan =>
        {
            let open = RuntimeDevice::Wgpu(WgpuDevice::new(WgpuDeviceKind::Cpu).on(WgpuBackend::Auto));
            RuntimeDevice::enumerate(open.to_id()).first().copied().map(RuntimeDevice::from_id)
        }
        _ => None,
    }
}

fn is_software(device: &RuntimeDevice) -> bool {
    matches!(device, RuntimeDevice::Wgpu(device) if device.kind == WgpuDeviceKind::Cpu)
}

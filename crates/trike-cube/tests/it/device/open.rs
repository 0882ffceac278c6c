//! Which devices there are.

use trike_cube::{CubeDevice, CubeError, DeviceSpec, Runtime, devices, is_linked};

#[test]
fn what_is_not_there_is_refused_by_name() {
    for runtime in Runtime::ALL {
        let spec = DeviceSpec::Numbered(runtime, 4242);
        let refused = CubeDevice::open(spec).expect_err("no such device");
        let expected = if is_linked(runtime) {
            matches!(refused, CubeError::NoDevice { .. })
        } else {
            matches!(refused, CubeError::NotLinked { .. })
        };
        assert!(expected && refused.to_string().contains(runtime.name()), "{refused}");
    }
}

/// A build with SPIR-V opens no software driver; other builds do not need to refuse it.
#[test]
fn software_drivers_are_not_given_spirv() {
    for info in devices() {
        if let Ok(capabilities) = info.capabilities {
            assert!(!(capabilities.software && cfg!(feature = "vulkan")), "{}", info.spec);
        }
    }
}

#[test]
fn auto_is_never_software() {
    if let Ok(device) = CubeDevice::open(DeviceSpec::Auto) {
        assert!(!device.is_software(), "{device:?}");
    }
}

//! The devices on which the tests run kernels.

use std::sync::OnceLock;

use trike_testkit::skip;

use crate::{CubeError, Device, DeviceOptions, DeviceSpec, Planes, Runtime};

/// The software Vulkan driver, twice: with the kernels that exchange values inside of planes, and with those that do not.
/// None after one `skipped:` line, which the test runner counts, where there is no such driver.
pub(crate) fn devices() -> Vec<Device> {
    [Planes::Forced, Planes::Off].into_iter().filter_map(device).collect()
}

/// One of [`devices`].
pub(crate) fn device(planes: Planes) -> Option<Device> {
    static OPEN: [OnceLock<Option<Device>>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    let device = OPEN[planes as usize].get_or_init(|| open(planes).ok()).clone();
    if device.is_none() {
        skip(if cfg!(feature = "wgpu") { "no Vulkan driver" } else { "built without the feature wgpu" });
    }
    device
}

/// The software driver twice, each with a queue and memory of its own. Memory is counted for the caller alone.
pub(crate) fn pair() -> Option<[Device; 2]> {
    let DeviceSpec::Numbered(runtime, index) = device(Planes::Off)?.spec() else { return None };
    let open = |index| {
        let options = DeviceOptions::default().with_planes(Planes::Off);
        Device::open_with(DeviceSpec::Numbered(runtime, index), options)
            .expect("the software driver, or its next number")
    };
    Some([open(index), open(index + 1)])
}

/// Software devices come last, so the last one of all; a real device is left to `cargo xtask gpu-test`.
fn open(planes: Planes) -> Result<Device, CubeError> {
    let mut index = 0;
    loop {
        let spec = DeviceSpec::Numbered(Runtime::Wgpu, index);
        let device = Device::open_with(spec, DeviceOptions::default().with_planes(planes))?;
        if device.is_software() && device.name().contains("llvmpipe") && device.capabilities().f16 {
            return Ok(device);
        }
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    use cubecl::prelude::*;

    use super::*;
    use crate::{Launch, Settings};

    #[test]
    fn the_driver_is_the_one_that_is_meant() {
        for device in devices() {
            assert!(device.name().contains("llvmpipe"), "{device:?}");
            assert!(device.is_software());
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for device in devices() {
            let words: Vec<u32> = (0..3000).collect();
            let buffer = device.upload(&words).expect("room");
            assert_eq!(device.read(&buffer).expect("a device"), words);
            let view = buffer.view(1024, 100).expect("aligned");
            assert_eq!(device.read(&view).expect("a device"), words[1024..1124]);
            device.write(&view, &[7; 100]).expect("the length");
            assert_eq!(
                device.read(&buffer).expect("a device")[1020..1028],
                [1020, 1021, 1022, 1023, 7, 7, 7, 7]
            );
            assert!(matches!(buffer.view(1, 10), Err(CubeError::NotMultiple { .. })));
            assert!(matches!(buffer.view(2048, 953), Err(CubeError::Range { .. })));
            assert!(matches!(
                device.write(&view, &[7; 99]),
                Err(CubeError::Length { expected: 100, got: 99, .. })
            ));
        }
    }

    #[test]
    fn filling_reaches_every_word_and_no_other() {
        for device in devices() {
            for len in [1, 63, 64, 1024, 1025, 5000] {
                let buffer = device.upload(&vec![3u32; len + 64]).expect("room");
                let part = buffer.view(64, len).expect("aligned");
                device.fill(&part, 0xABCD_0123).expect("a launch");
                let got = device.read(&buffer).expect("a device");
                assert_eq!(got[..64], [3; 64], "{len}");
                assert_eq!(got[64..], vec![0xABCD_0123; len], "{len}");
            }
        }
    }

    #[test]
    fn too_much_memory_is_refused_with_both_numbers() {
        for device in devices() {
            let limit = device.capabilities().max_buffer_bytes;
            let len = usize::try_from(limit / 4 + 1).expect("a length").min(u32::MAX as usize + 1);
            let refused = device.empty::<u32>(len).expect_err("over the limit").to_string();
            assert!(
                refused.contains(&len.to_string()) || refused.contains(&(4 * len).to_string()),
                "{refused}"
            );
            assert!(matches!(device.empty::<u32>(0), Err(CubeError::Range { got: 0, .. })));
        }
    }

    /// Stands for whatever goes wrong on the device's thread.
    #[cube(launch_unchecked)]
    fn refuses_to_be_made(out: &mut [u32], #[comptime] reason: u32) {
        comptime!(assert!(reason == 0, "reason {reason}"));
        out[0] = 1;
    }

    /// A build that aborts would end here, and with it a program that could have gone on without the device.
    #[test]
    fn a_panic_on_the_devices_thread_is_an_error_of_the_call() {
        for device in devices() {
            let out = device.upload(&[5u32; 70]).expect("room");
            let launch = Launch::new("refuses to be made", &77, Settings::linear(1, 1, 1));
            let refused = device.launch(&launch, &[&out], |client, cubes, units| {
                // SAFETY: nothing is launched, and one number is there.
                unsafe { refuses_to_be_made::launch_unchecked(client, cubes, units, out.arg(), 77) };
            });
            let Err(CubeError::Launch { reason, .. }) = refused else { panic!("{refused:?}") };
            assert!(reason.contains("reason 77"), "{reason}");
            // The device goes on; what the kernel should have written is not handed out as if it had.
            let other = device.upload(&[1u32; 70]).expect("room");
            device.fill(&other, 9).expect("a launch");
            assert_eq!(device.read(&other).expect("a device"), [9; 70]);
            assert!(matches!(device.read(&out), Err(CubeError::Device { .. })));
        }
    }

    #[test]
    fn memory_in_use_is_counted() {
        let Some(device) = device(Planes::Off) else { return };
        let spare = Device::open_with(device.spec(), DeviceOptions::default().with_planes(Planes::Off))
            .expect("there");
        let before = spare.memory();
        let buffer = spare.upload_weights(&[1.5f32; 1000]).expect("room");
        assert_eq!(spare.memory().in_use, before.in_use + 4000);
        let view = buffer.view(0, 10).expect("aligned");
        drop(buffer);
        assert_eq!(spare.memory().in_use, before.in_use + 4000, "a view keeps the memory");
        assert_eq!(spare.read(&view).expect("a device"), [1.5; 10]);
        drop(view);
        assert_eq!((spare.memory().in_use, spare.memory().peak), (before.in_use, before.in_use + 4000));
        assert!(spare.memory().limit.is_none() && spare.memory().unused() <= spare.memory().reserved);
    }

    #[test]
    fn a_limit_refuses_what_is_beyond_it_and_nothing_else() {
        let Some(device) = device(Planes::Off) else { return };
        let options = DeviceOptions::default().with_planes(Planes::Off).with_memory_limit(4000);
        let limited = Device::open_with(device.spec(), options).expect("there");
        let first = limited.upload(&[1.5f32; 900]).expect("room");
        assert_eq!(limited.memory().available(), Some(400));
        let refused = limited.empty::<f32>(101).expect_err("four bytes too many");
        assert!(matches!(refused, CubeError::Memory { requested: 4004, limit: 4000, .. }), "{refused}");
        assert!(matches!(limited.upload_weights(&[0u32; 200]), Err(CubeError::Memory { .. })));
        let rest = limited.empty::<f32>(100).expect("the rest");
        assert_eq!(limited.clone().memory().available(), Some(0), "clones share the limit");
        drop((first, rest));
        limited.upload(&[0.0f32; 1000]).expect("all of it");
        device.upload(&[0.0f32; 2000]).expect("another device has no limit");
    }
}

//! Failures of launches.

use cubecl::prelude::*;
use trike_cube::{CubeError, Launch, Settings};

use crate::testing::devices;

/// Simulates any failure on the device thread.
#[cube(launch)]
fn refuses_to_be_made(out: &mut [u32], #[comptime] reason: u32) {
    comptime!(assert!(reason == 0, "reason {reason}"));
    out[0] = 1;
}

/// A build that aborts on panic would end here, although the program could continue without the device.
#[test]
fn a_panic_on_the_devices_thread_is_an_error_of_the_call() {
    for device in devices() {
        let out = device.upload(&[5u32; 70]).expect("room");
        let launch = Launch::new("refuses to be made", &77, Settings::linear(1, 1, 1));
        let refused = device.launch(&launch, &[&out], |client, cubes, units| {
            refuses_to_be_made::launch(client, cubes, units, out.arg(), 77);
        });
        let Err(CubeError::Launch { reason, .. }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("reason 77"), "{reason}");
        // The device stays usable, but the missing output is not returned as if it were written.
        let other = device.upload(&[1u32; 70]).expect("room");
        device.fill(&other, 9).expect("a launch");
        assert_eq!(device.read(&other).expect("a device"), [9; 70]);
        assert!(matches!(device.read(&out), Err(CubeError::Device { .. })));
    }
}

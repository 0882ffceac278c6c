//! Copies from one device to another.

use trike_cube::{CubeDevice, CubeError, DeviceOptions, Planes};

use crate::testing::pair;

#[test]
fn a_buffer_is_copied_to_another_device() {
    let Some([first, second]) = pair() else { return };
    let words: Vec<u32> = (0..3000).collect();
    let buffer = first.upload(&words).expect("room");
    let before = (first.memory().in_use, second.memory().in_use);
    let copy = first.copy_to(&buffer, &second).expect("a copy");
    assert_eq!((first.memory().in_use, second.memory().in_use), (before.0, before.1 + 12_000));
    // The two have separate memory: a write to one does not change the other.
    first.fill(&buffer, 7).expect("a launch");
    assert_eq!(second.read(&copy).expect("a device"), words);
    assert_eq!(first.read(&buffer).expect("a device"), [7; 3000]);
    // The copy waits for launches in the queue, also of a view.
    let view = buffer.view(1024, 100).expect("aligned");
    first.fill(&view, 9).expect("a launch");
    let part = first.copy_to(&view, &second).expect("a copy");
    assert_eq!((part.len(), second.read(&part).expect("a device")), (100, vec![9; 100]));
    // And back.
    let back = second.copy_to(&copy, &first).expect("a copy");
    assert_eq!(first.read(&back).expect("a device"), words);
}

/// Memory that the runtime reserves for one of the two is not reserved for the other.
#[test]
fn two_devices_have_two_pools() {
    let Some([first, second]) = pair() else { return };
    let before = second.memory().reserved;
    let large = first.upload_weights(&vec![0u32; 1 << 22]).expect("room");
    assert!(first.memory().reserved >= 1 << 24, "{:?}", first.memory());
    assert!(second.memory().reserved < before + (1 << 24), "{:?}", second.memory());
    drop(large);
}

#[test]
fn copies_that_are_impossible_are_refused() {
    let Some([first, second]) = pair() else { return };
    let buffer = first.upload(&[1.0f32; 100]).expect("room");
    let refused = second.copy_to(&buffer, &first).expect_err("not its buffer");
    assert!(matches!(refused, CubeError::OtherDevice { .. }), "{refused}");
    let name = second.spec().to_string();
    assert_eq!(refused.to_string(), format!("the buffer to copy is not in the memory of {name}"));
    let options = DeviceOptions::default().with_planes(Planes::Off).with_memory_limit(399);
    let small = CubeDevice::open_with(second.spec(), options).expect("there");
    let refused = first.copy_to(&buffer, &small).expect_err("a byte too many");
    assert!(matches!(refused, CubeError::Memory { requested: 400, limit: 399, .. }), "{refused}");
    // A copy cannot be recorded, neither from the device nor to it.
    let out = first.upload(&[0u32; 100]).expect("room");
    let there = second.upload(&[0u32; 100]).expect("room");
    for device in [&first, &second] {
        let refused = device.capture(|| first.copy_to(&out, &second).map(drop));
        assert!(matches!(refused, Err(CubeError::Capture { .. })), "{refused:?}");
    }
    assert_eq!(second.read(&there).expect("it goes on"), [0; 100]);
}

//! Buffers and the memory that they take.

use trike_cube::{CubeDevice, CubeError, DeviceOptions, Planes};

use crate::testing::{device, devices};

#[test]
fn what_is_written_is_read_back() {
    for device in devices() {
        let words: Vec<u32> = (0..3000).collect();
        let buffer = device.upload(&words).expect("room");
        assert_eq!(device.read(&buffer).expect("a device"), words);
        let view = buffer.view(1024, 100).expect("aligned");
        assert_eq!(device.read(&view).expect("a device"), words[1024..1124]);
        device.write(&view, &[7; 100]).expect("the length");
        assert_eq!(device.read(&buffer).expect("a device")[1020..1028], [1020, 1021, 1022, 1023, 7, 7, 7, 7]);
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
        assert!(refused.contains(&len.to_string()) || refused.contains(&(4 * len).to_string()), "{refused}");
        assert!(matches!(device.empty::<u32>(0), Err(CubeError::Range { got: 0, .. })));
    }
}

#[test]
fn memory_in_use_is_counted() {
    let Some(device) = device(Planes::Off) else { return };
    let spare = CubeDevice::open_with(device.spec(), DeviceOptions::default().with_planes(Planes::Off))
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
    let limited = CubeDevice::open_with(device.spec(), options).expect("there");
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

//! Captures on the software Vulkan driver.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trike_cube::attention::Positions;
use trike_cube::{Buffer, CubeDevice, CubeError, Graphs, Result, Strategy};

use crate::testing::devices;

const LEN: usize = 200;

/// `1 + x`, with two tensors, the first of which is freed before the second is allocated.
fn one_more(device: &CubeDevice, x: &Buffer<f32>) -> Result<Buffer<f32>> {
    let first = device.empty::<f32>(LEN)?;
    device.fill(&first.cast()?, 5.0f32.to_bits())?;
    drop(first);
    let second = device.empty::<f32>(LEN)?;
    device.fill(&second.cast()?, 1.0f32.to_bits())?;
    device.add(&second, x, &Strategy::Inferred)?;
    Ok(second)
}

#[test]
fn a_replay_does_again_what_was_recorded() {
    for shared in devices() {
        assert_eq!(shared.capabilities().graphs, Graphs::Software);
        // A separate device, whose memory statistics no other test affects.
        let device = CubeDevice::open(shared.spec()).expect("there");
        let before = device.memory().in_use;
        let x = device.upload(&[2.0f32; LEN]).expect("room");
        let (graph, out) = device.capture(|| one_more(&device, &x)).expect("a graph");
        // The input and one tensor: the second reuses the memory of the first.
        assert_eq!((graph.launches(), graph.bytes()), (3, 2 * 4 * LEN as u64));
        for value in [2.0, 7.5, -3.0] {
            device.write(&x, &[value; LEN]).expect("the length");
            device.fill(&out.cast().expect("words"), 0).expect("a launch");
            graph.replay().expect("a replay");
            assert_eq!(device.read(&out).expect("a device"), [value + 1.0; LEN]);
        }
        // Twice in a row: the sum starts from zero again.
        graph.replay().expect("a replay");
        graph.replay().expect("a replay");
        assert_eq!(device.read(&out).expect("a device"), [-2.0; LEN]);
        drop((x, out));
        assert_eq!(device.memory().in_use, before + 2 * 4 * LEN as u64, "the graph keeps both");
        drop(graph);
        assert_eq!(device.memory().in_use, before);
    }
}

/// Buffers allocated later must not overlap the memory that a graph writes.
#[test]
fn memory_of_a_graph_is_not_given_to_others() {
    for device in devices() {
        let x = device.upload(&[2.0f32; LEN]).expect("room");
        let (graph, out) = device.capture(|| one_more(&device, &x)).expect("a graph");
        drop((x, out));
        let others: Vec<_> = (0..20).map(|_| device.upload(&[9.0f32; LEN]).expect("room")).collect();
        graph.replay().expect("a replay");
        for other in &others {
            assert_eq!(device.read(other).expect("a device"), [9.0; LEN]);
        }
    }
}

#[test]
fn what_is_no_launch_is_refused_and_the_device_goes_on() {
    for device in devices() {
        let x = device.upload(&[2.0f32; LEN]).expect("room");
        type Other = fn(&CubeDevice, &Buffer<f32>) -> Result<()>;
        let table: [(&str, Other); 9] = [
            ("a copy to the device", |d, _| d.upload(&[1u32]).map(|_| ())),
            ("a copy to the device", |d, _| d.upload_weights(&[1u32]).map(|_| ())),
            ("a copy to the device", |d, x| d.write(x, &[0.0; LEN])),
            ("a copy from the device", |d, x| d.read(x).map(|_| ())),
            ("a copy from the device", |d, x| d.read_both(x, x).map(|_| ())),
            ("a wait", |d, _| d.sync()),
            ("a wait", |d, _| d.release()),
            ("another capture", |d, _| d.timed(|| Ok(())).map(|_| ())),
            ("another capture", |d, _| d.capture(|| Ok::<_, CubeError>(())).map(|_| ())),
        ];
        for (what, other) in table {
            // In the first run, and in the second.
            for at in [1, 2] {
                let mut run = 0;
                let refused = device.capture(|| {
                    run += 1;
                    let out = one_more(&device, &x)?;
                    if run >= at {
                        other(&device, &x)?;
                    }
                    Ok::<_, CubeError>(out)
                });
                let refused = refused.expect_err(what);
                assert!(matches!(refused, CubeError::Capture { .. }), "{refused}");
                assert!(refused.to_string().contains(what), "{refused}");
                let out = one_more(&device, &x).expect("launches");
                assert_eq!(device.read(&out).expect("a device"), [3.0; LEN], "{what}");
            }
        }
        let (graph, out) = device.capture(|| one_more(&device, &x)).expect("a graph");
        graph.replay().expect("a replay");
        assert_eq!(device.read(&out).expect("a device"), [3.0; LEN]);
        let within = device.capture(|| graph.replay()).expect_err("a replay inside of a capture");
        assert!(matches!(within, CubeError::Capture { what: "a replay" }), "{within}");
    }
}

/// More than one cube.
const LONG: usize = 5000;

#[test]
fn runs_that_differ_are_refused_and_the_device_goes_on() {
    for device in devices() {
        let x = device.upload(&[2.0f32; LEN]).expect("room");
        let out = device.upload(&[0u32; LONG]).expect("room");
        type Second = fn(&CubeDevice, &Buffer<u32>) -> Result<()>;
        let table: [(&str, Second); 5] = [
            ("other launches", |_, _| Ok(())),
            ("other launches", |d, out| d.fill(out, 1).and_then(|()| d.fill(out, 1))),
            ("other launches", |d, out| d.fill(&out.view(0, 1)?, 1)),
            ("memory", |d, out| d.empty::<u32>(LEN + 1).and_then(|_| d.fill(out, 1))),
            // The error is ignored by the closure but returned nevertheless.
            ("memory", |d, out| d.fill(out, 1).map(|()| drop(d.empty::<u32>(LEN + 1)))),
        ];
        for (what, second) in table {
            let mut run = 0;
            let refused = device.capture(|| {
                run += 1;
                if run == 1 { device.fill(&out, 1) } else { second(&device, &out) }
            });
            let refused = refused.expect_err(what);
            assert!(matches!(&refused, CubeError::Capture { what: w } if w.contains(what)), "{refused}");
            device.fill(&out, 4).expect("a launch");
            assert_eq!(device.read(&out).expect("a device"), [4; LONG]);
            let (graph, sum) = device.capture(|| one_more(&device, &x)).expect("a graph");
            graph.replay().expect("a replay");
            assert_eq!(device.read(&sum).expect("a device"), [3.0; LEN]);
        }
    }
}

#[test]
fn a_panic_inside_of_a_capture_leaves_the_device_as_it_was() {
    for device in devices() {
        let out = device.upload(&[0u32; LEN]).expect("room");
        for at in [1, 2] {
            let mut run = 0;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                device.capture(|| {
                    run += 1;
                    assert!(run < at, "on purpose");
                    device.fill(&out, 1)
                })
            }));
            panicked.expect_err("a panic");
            device.fill(&out, 6).expect("a launch");
            assert_eq!(device.read(&out).expect("a device"), [6; LEN]);
            device.capture(|| device.fill(&out, 2)).expect("a graph");
        }
    }
}

/// Operations of other threads run once meanwhile, and are not part of the graph.
#[test]
fn other_threads_are_not_recorded() {
    for device in devices() {
        let x = device.upload(&[2.0f32; LEN]).expect("room");
        let sum = device.upload(&[0.0f32; LEN]).expect("room");
        let one = device.upload(&[1.0f32; LEN]).expect("room");
        let done = Arc::new(AtomicBool::new(false));
        let other = {
            let (device, sum, done) = (device.clone(), sum.clone(), Arc::clone(&done));
            std::thread::spawn(move || {
                let mut rounds = 0u16;
                while !done.load(Ordering::Relaxed) {
                    device.add(&sum, &one, &Strategy::Inferred)?;
                    assert_eq!(device.read(&device.upload(&[u32::from(rounds)])?)?, [u32::from(rounds)]);
                    rounds += 1;
                }
                Ok::<_, CubeError>(rounds)
            })
        };
        for _ in 0..5 {
            let captured = device.capture(|| {
                std::thread::sleep(Duration::from_millis(5));
                one_more(&device, &x)
            });
            let (graph, out) = captured.expect("a graph");
            assert_eq!(graph.launches(), 3);
            graph.replay().expect("a replay");
            assert_eq!(device.read(&out).expect("a device"), [3.0; LEN]);
        }
        done.store(true, Ordering::Relaxed);
        let rounds = other.join().expect("no panic").expect("launches");
        assert!(rounds > 0);
        assert_eq!(device.read(&sum).expect("a device"), [f32::from(rounds); LEN]);
    }
}

/// Two devices on one GPU share a queue: launches of one would be recorded by the other, but not its memory.
#[test]
fn another_device_has_no_part_in_a_capture() {
    for device in devices() {
        let other = CubeDevice::open(device.spec()).expect("there");
        let mine = device.upload(&[0u32; 8]).expect("room");
        let theirs = other.upload(&[0u32; 8]).expect("room");
        let refused: [Result<()>; 5] = [
            device.capture(|| device.fill(&theirs, 1)).map(|_| ()),
            device.capture(|| other.fill(&theirs, 1)).map(|_| ()),
            device.capture(|| other.fill(&mine, 1)).map(|_| ()),
            device.capture(|| other.empty::<u32>(8)).map(|_| ()),
            device.capture(|| other.write(&theirs, &[1; 8])).map(|_| ()),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err("another device").to_string();
            assert!(error.contains("another device"), "{i}: {error}");
        }
        let (graph, ()) = device.capture(|| device.fill(&mine, 3)).expect("a graph");
        device.fill(&mine, 0).expect("a launch");
        other.fill(&theirs, 4).expect("a launch");
        graph.replay().expect("a replay");
        assert_eq!(device.read(&mine).expect("a device"), [3; 8]);
        assert_eq!(other.read(&theirs).expect("a device"), [4; 8]);
    }
}

#[test]
fn clones_of_positions_notice_that_they_were_overwritten() {
    for device in devices() {
        let mut positions = Positions::upload(&device, &[5]).expect("a position");
        let clone = positions.clone();
        clone.check_current().expect("nothing was written");
        positions.write(&device, &[9000]).expect("below the bound");
        positions.check_current().expect("its own");
        assert!(matches!(clone.check_current(), Err(CubeError::Overwritten { .. })));
        positions.write(&device, &[1 << 30]).expect_err("over the bound");
        positions.check_current().expect("nothing was written");
    }
}

#[test]
fn a_device_without_graphs_says_so() {
    for device in devices() {
        let device = device.without_graphs();
        assert_eq!(device.capabilities().graphs, Graphs::None);
        let refused = device.capture(|| Ok::<_, CubeError>(())).expect_err("no graphs");
        assert!(matches!(refused, CubeError::Feature { feature: "graphs", .. }), "{refused}");
    }
}

//! Errors, not NaN.

use std::borrow::Borrow;

use trike_autodiff::{Buffers, EngineMemory, EngineOps, GradError, Tape};
use trike_core::AttentionSpec;
use trike_cube::{CubeError, DeviceOptions};

use super::{engines, software};

#[test]
fn shapes_and_numbers() {
    for engine in engines() {
        let values = engine.upload(vec![1.0; 12]).expect("room");
        let buffers = Buffers::default();
        let mut tape = Tape::new(&engine, &buffers);
        let a = tape.parameter(values.borrow(), 3).expect("4 x 3");
        let b = tape.parameter(values.borrow(), 4).expect("3 x 4");
        assert!(tape.parameter(values.borrow(), 5).is_err());
        assert!(matches!(tape.linear(a, b, None), Err(GradError::Shape { .. })));
        assert!(matches!(tape.rms_norm(a, b, 1e-5), Err(GradError::Shape { .. })));
        let far = tape.cross_entropy(a, a, &[None, Some(4), None, None], 1.0);
        assert!(matches!(far, Err(GradError::Target { row: 1, target: 4, vocabulary: 4 })));
        assert!(tape.embed(a, &[0, 4].into()).is_err());
        assert!(matches!(tape.embed(a, &[].into()), Err(GradError::Cube(CubeError::Range { got: 0, .. }))));
        let segments = engine.segments(vec![3, 1]).expect("documents");
        let spec = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 4, scale: 1.0, window: None };
        let wrong = tape.attention(&spec, [a, a, a], &segments);
        assert!(matches!(wrong, Err(GradError::Cube(CubeError::Length { expected: 16, got: 12, .. }))));
        assert!(engine.segments(Vec::new()).is_err());
        // The tape is unchanged.
        let y = tape.add(a, a).expect("it runs");
        let dy = engine.upload(vec![1.0; 12]).expect("room");
        assert!(tape.backward_from(y, dy).is_ok());
    }
}

#[test]
fn too_little_memory() {
    let Some(engine) = software(DeviceOptions::default().with_memory_limit(1 << 16)) else { return };
    let x = engine.upload(vec![1.0; 4096]).expect("room");
    let buffers = Buffers::default();
    let mut tape = Tape::new(&engine, &buffers);
    let x = tape.parameter(x.borrow(), 32).expect("128 x 32");
    // The limit is 128 x 128 elements.
    let refused = tape.linear(x, x, None);
    assert!(matches!(refused, Err(GradError::Cube(CubeError::Memory { .. }))), "{refused:?}");
}

/// Heads that need more shared memory than the device has.
#[test]
fn a_launch_beyond_a_limit() {
    for engine in engines() {
        let dim = 1024;
        let values = engine.upload(vec![1.0; 3 * dim]).expect("room");
        let buffers = Buffers::default();
        let mut tape = Tape::new(&engine, &buffers);
        let x = tape.parameter(values.borrow(), dim).expect("3 x 1024");
        let segments = engine.segments(vec![3]).expect("documents");
        let spec = AttentionSpec { heads: 1, kv_heads: 1, head_dim: dim, scale: 1.0, window: None };
        let refused = tape.attention(&spec, [x, x, x], &segments);
        assert!(matches!(refused, Err(GradError::Cube(CubeError::Limit { .. }))), "{refused:?}");
    }
}

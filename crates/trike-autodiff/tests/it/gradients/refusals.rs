//! Errors, not panics.

use std::sync::Arc;

use trike_autodiff::{Backward, Buffers, GradError, Operation, Tape, TernarizeSpec, TernaryScale, Var};
use trike_cpu::{Cpu, CpuError};

/// An operation whose kernel fails in the backward pass.
struct Failing(Var);

impl Operation for Failing {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        pass.add(self.0, dy[1..].to_vec())
    }
}

#[test]
fn shapes_and_numbers() {
    let cpu = Cpu::new(1).expect("a thread");
    let values = [1.0; 12];
    let mut tape = Tape::new(&cpu, &Buffers::default());
    let (a, b) = (tape.parameter(&values, 3).expect("4 x 3"), tape.parameter(&values, 4).expect("3 x 4"));
    assert!(tape.parameter(&values, 5).is_err() && tape.parameter(&values, 0).is_err());
    let shape = |result: Result<Var, GradError>| matches!(result, Err(GradError::Shape { .. }));
    assert!(shape(tape.linear(a, b, None)) && shape(tape.linear(a, a, Some(b))) && shape(tape.add(a, b)));
    assert!(shape(tape.rms_norm(a, b, 1e-5)));
    assert!(shape(tape.gated(a, b, trike_cpu::GatedActivation::SiLu)));
    let learned = TernarizeSpec::default().with_scale(TernaryScale::Learned(b));
    assert!(shape(tape.ternarize(a, &learned)));
    for lambda in [-0.1, 1.1, f32::NAN] {
        let refused = tape.ternarize(a, &TernarizeSpec::default().with_lambda(lambda));
        assert!(matches!(refused, Err(GradError::Range { what: "lambda", .. })), "{lambda}");
    }
    assert!(tape.ternarize(a, &TernarizeSpec::default().with_clip(0.0)).is_err());
    let ids: Arc<[u32]> = [0, 4].into();
    assert!(matches!(tape.embed(a, &ids), Err(GradError::Cpu(CpuError::IdOutOfRange { id: 4, .. }))));
    let few = tape.cross_entropy(a, a, &[None; 3], 1.0);
    assert!(matches!(few, Err(GradError::Length { expected: 4, got: 3, .. })));
    let far = tape.cross_entropy(a, a, &[None, Some(4), None, None], 1.0);
    assert!(matches!(far, Err(GradError::Target { row: 1, target: 4, vocabulary: 4 })));
    let teacher = tape.divergence(a, a, 1.0, |_, _| Err(GradError::ForeignVariable));
    assert!(matches!(teacher, Err(GradError::ForeignVariable)));
    // The tape is unchanged.
    let y = tape.add(a, a).expect("it runs");
    assert!(tape.backward_from(y, vec![1.0; 12]).is_ok());
}

#[test]
fn variables_of_another_tape() {
    let cpu = Cpu::new(1).expect("a thread");
    let values = [1.0; 4];
    let (mut one, mut other) = (Tape::new(&cpu, &Buffers::default()), Tape::new(&cpu, &Buffers::default()));
    let (a, b) = (one.parameter(&values, 2).expect("rows"), other.parameter(&values, 2).expect("rows"));
    assert!(matches!(one.add(a, b), Err(GradError::ForeignVariable)));
    assert!(matches!(one.backward_from(b, vec![1.0; 4]), Err(GradError::ForeignVariable)));
}

#[test]
fn a_failing_backward_pass() {
    let cpu = Cpu::new(1).expect("a thread");
    let values = [1.0; 4];
    let mut tape = Tape::new(&cpu, &Buffers::default());
    let x = tape.parameter(&values, 2).expect("rows");
    let y = tape.record(&[x], vec![0.0; 4], 2, Failing(x)).expect("whole rows");
    assert!(matches!(
        tape.backward_from(y, vec![1.0; 4]),
        Err(GradError::Length { expected: 4, got: 3, .. })
    ));
    let mut tape = Tape::new(&cpu, &Buffers::default());
    let x = tape.parameter(&values, 2).expect("rows");
    assert!(matches!(tape.backward(x), Err(GradError::Length { expected: 4, got: 1, .. })));
}

#[test]
fn an_untracked_value_has_no_gradient_and_keeps_nothing() {
    let cpu = Cpu::new(1).expect("a thread");
    let values = [1.0; 4];
    let buffers = Buffers::default();
    let mut tape = Tape::new(&cpu, &buffers);
    let (x, w) = (tape.constant(&values, 2).expect("rows"), tape.parameter(&values, 2).expect("rows"));
    let frozen = tape.linear(x, x, None).expect("it runs");
    assert!(!tape.is_tracked(frozen).expect("of this tape"));
    let y = tape.linear(frozen, w, None).expect("it runs");
    assert_eq!(tape.bytes(), 32);
    let mut gradients = tape.backward_from(y, vec![1.0; 4]).expect("it runs");
    assert_eq!((gradients.get(x), gradients.get(frozen), gradients.get(y)), (None, None, None));
    assert_eq!(gradients.take(w), Some(vec![4.0; 4]));
    // Two activations and the gradient of the output, for the next tape.
    assert_eq!(buffers.bytes(), 48);
}

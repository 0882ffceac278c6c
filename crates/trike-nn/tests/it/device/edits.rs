//! Weights edited while resident, compared with models loaded with the edited weights.

use trike_nn::MatrixEdit;
use trike_trit::{Edit, Trit};

use super::*;

/// Random weights, one of them edited after loading.
pub(crate) struct EditedWeights<'a> {
    weights: Random<'a>,
    name: WeightName,
    edits: &'a [Edit],
    /// The tensor before and after the edits.
    pub(crate) seen: Option<[TritTensor; 2]>,
}

impl<'a> EditedWeights<'a> {
    pub(crate) fn new(spec: &'a DecoderSpec, kind: Kind, name: WeightName, edits: &'a [Edit]) -> Self {
        Self { weights: Random::new(spec, kind), name, edits, seen: None }
    }
}

impl DecoderWeights for EditedWeights<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        match self.weights.matrix(name)? {
            Tensor::Ternary(before) if name == self.name => {
                let mut after = before.clone();
                after.edit(self.edits)?;
                self.seen = Some([before, after.clone()]);
                Ok(Tensor::Ternary(after))
            }
            other => Ok(other),
        }
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        self.weights.vector(name)
    }
}

/// Random edits of the first plane of a weight.
pub(crate) fn some(spec: &DecoderSpec, name: WeightName, count: usize) -> Vec<Edit> {
    let ((rows, cols), mut rng) = (spec.shape(name), Rng::new(31));
    let trits = [Trit::N, Trit::Z, Trit::P];
    let mut edit =
        || Edit { plane: 0, row: rng.below(rows), col: rng.below(cols), trit: trits[rng.below(3)] };
    (0..count).map(|_| edit()).collect()
}

/// Edits a weight and reverts the edit; returns the kind of edit.
fn check<B: Backend>(
    backend: impl Fn() -> B,
    spec: &DecoderSpec,
    kind: Kind,
    name: WeightName,
) -> MatrixEdit {
    let edits = some(spec, name, 60);
    let mut decoder = Decoder::new(backend(), spec.clone(), &mut Random::new(spec, kind)).expect("it loads");
    let mut weights = EditedWeights::new(spec, kind, name, &edits);
    let edited = Decoder::new(backend(), spec.clone(), &mut weights).expect("it loads");
    let [before, after] = weights.seen.expect("a ternary weight");
    let (kv, ids) = (KvSpec::new(KvPrecision::F32, 40), ids(12, 4));
    let run = |decoder: &Decoder<B>| logits(decoder, &ids, kv, 5);
    let (was, want) = (run(&decoder), run(&edited));
    assert_ne!(was, want, "{kind:?} {name}: the weights matter");

    let outcome = decoder.edit(name, &edits, &after).expect("an edit");
    assert_eq!(run(&decoder), want, "{kind:?} {name}: {outcome:?}");
    let mut undo: Vec<Edit> = edits
        .iter()
        .map(|e| Edit { trit: before.get(e.plane, e.row, e.col).expect("a place"), ..*e })
        .collect();
    undo.reverse();
    decoder.edit(name, &undo, &before).expect("an edit");
    assert_eq!(run(&decoder), was, "{kind:?} {name}: {outcome:?}");

    let wrong = Edit { row: before.rows(), ..edits[0] };
    assert!(matches!(decoder.edit(name, &[wrong], &before), Err(NnError::Trit(_))));
    let other = if name == WeightName::Down(0) { WeightName::Head } else { WeightName::Down(0) };
    assert!(matches!(decoder.edit(other, &edits, &before), Err(NnError::WeightShape { .. })));
    outcome
}

const NAMES: [WeightName; 4] =
    [WeightName::Query(0), WeightName::Value(1), WeightName::Gate(1), WeightName::Down(0)];

#[test]
fn edits_reach_resident_weights_on_the_host() {
    let spec = base();
    let host = |layout| {
        move || CpuBackend::new(Cpu::new(1).expect("a thread"), ActivationPrecision::F32).with_layout(layout)
    };
    for name in NAMES {
        for kind in [Kind::Trits, Kind::Mixed, Kind::Rotated] {
            for layout in [Layout::TwoBit, Layout::Base3] {
                assert_eq!(
                    check(host(Some(layout)), &spec, kind, name),
                    MatrixEdit::InPlace,
                    "{kind:?} {name}"
                );
            }
        }
        for kind in [Kind::Few, Kind::Blocks] {
            for layout in [None, Some(Layout::Sparse), Some(Layout::Blocks)] {
                check(host(layout), &spec, kind, name);
            }
        }
    }
}

#[test]
fn edits_reach_resident_weights_on_a_device() {
    let Some(device) = software() else { return };
    let spec = base();
    let on_device =
        |layout| CubeBackend::new(device.clone(), ActivationPrecision::F32).with_layout(Some(layout));
    for name in NAMES {
        // Query, key and value are fused, and so are gate and up.
        let outcome = check(|| on_device(Layout::TwoBit), &spec, Kind::Trits, name);
        assert_eq!(outcome, MatrixEdit::InPlace, "{name}");
    }
    let rotated = check(|| on_device(Layout::TwoBit), &spec, Kind::Rotated, WeightName::Down(0));
    assert_eq!(rotated, MatrixEdit::InPlace);
    for layout in [Layout::Sparse, Layout::Bitmap] {
        let outcome = check(|| on_device(layout), &spec, Kind::Few, WeightName::Down(0));
        assert_eq!(outcome, MatrixEdit::Replaced, "{layout:?}");
    }
}

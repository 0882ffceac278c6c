//! Autotuning of a model's products.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, Weak};

use trike_cube::linear::CubeTernaryMatrix;
use trike_trit::GroupSize;

use super::CubeBackend;
use crate::NnError;
use crate::tune::{KernelTuning, TunedProduct, TunedTable};

impl CubeBackend {
    /// Registers a matrix for [`tune_all`](Self::tune_all).
    pub(super) fn remember(&self, matrix: &Arc<CubeTernaryMatrix>) {
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        resident.retain(|other| other.strong_count() > 0);
        resident.push(Arc::downgrade(matrix));
    }

    /// The loaded ternary matrices, grouped by form.
    fn forms(&self) -> Vec<Vec<Arc<CubeTernaryMatrix>>> {
        let resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        let mut forms: Vec<Vec<Arc<CubeTernaryMatrix>>> = Vec::new();
        for matrix in resident.iter().filter_map(Weak::upgrade) {
            match forms.iter_mut().find(|of_one| of_one.iter().all(|other| other.form() == matrix.form())) {
                Some(of_one) => of_one.push(matrix),
                None => forms.push(vec![matrix]),
            }
        }
        forms
    }

    /// Tunes the products of all devices.
    pub(super) fn tune_all(
        &self,
        tokens: &[usize],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<KernelTuning, NnError> {
        let mut work = Vec::new();
        for stage in self.each() {
            for matrices in stage.forms() {
                for &tokens in &tokens.iter().copied().filter(|&tokens| tokens > 0).collect::<BTreeSet<_>>() {
                    // A product of an unfused matrix may be added to the residual stream, which is tuned as a separate problem.
                    let adds: &[bool] = match matrices.first() {
                        Some(first) if first.form().parts.len() == 1 => &[false, true],
                        _ => &[false],
                    };
                    work.extend(adds.iter().map(|&add| (stage, matrices.clone(), tokens, add)));
                }
            }
        }
        let all = work.len();
        progress(0, all);
        let mut products = Vec::with_capacity(all);
        for (done, (stage, matrices, tokens, add)) in work.into_iter().enumerate() {
            let resident: Vec<&CubeTernaryMatrix> = matrices.iter().map(AsRef::as_ref).collect();
            if let Some(first) = resident.first() {
                let precision =
                    stage.activations.precision(first.form().group.and_then(GroupSize::from_usize));
                let tried = stage.device.tune(&resident, tokens, precision, add)?;
                let inferred = tried.iter().find(|tried| tried.inferred);
                if let Some(best) = tried.first().filter(|best| best.nanoseconds.is_some()) {
                    products.push(TunedProduct {
                        device: stage.device_name(),
                        rows: first.form().rows(),
                        cols: first.form().cols,
                        matrices: resident.len(),
                        tokens,
                        added: add,
                        candidates: tried.len(),
                        predicted: inferred.map(|tried| tried.name.clone()),
                        predicted_ns: inferred.and_then(|tried| tried.nanoseconds),
                        chosen: best.name.clone(),
                        chosen_ns: best.nanoseconds.unwrap_or_default(),
                    });
                }
            }
            progress(done + 1, all);
        }
        let table = |stage: &Self| {
            let table = stage.device.tuned();
            TunedTable { device: table.device().to_owned(), text: table.to_text() }
        };
        Ok(KernelTuning { products, tables: self.each().map(table).collect() })
    }
}

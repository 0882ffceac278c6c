//! Autotuned kernels: `trike bench --tune` stores the choices in the user's cache, and every command that opens a device uses them.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use trike::{
    Device, Model,
    format::OutputFile,
    nn::{TunedProduct, TunedTable},
};

use super::shipped;
use crate::{output, progress::Progress};

/// The measurement of products of one shape; part of the schema of `trike bench --json`.
#[derive(Debug, Serialize)]
pub(crate) struct TunedRow {
    pub(crate) device: String,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) matrices: usize,
    pub(crate) tokens: usize,
    pub(crate) added: bool,
    pub(crate) candidates: usize,
    pub(crate) predicted: Option<String>,
    pub(crate) predicted_ns: Option<f64>,
    pub(crate) chosen: String,
    pub(crate) chosen_ns: f64,
}

/// Applies the stored choices to the devices. An unreadable table is not an error: kernels are then chosen by prediction.
pub(super) fn load(device: &Device, quiet: bool) {
    for name in device.names() {
        let Some(text) = files(&name).find_map(|file| fs::read_to_string(file).ok()) else { continue };
        if device.use_tuned(&text).is_err() && !quiet {
            output::note(&format!(
                "the tuned kernels of {name} were stored by another version: `trike bench --tune` measures again"
            ));
        }
    }
}

/// Autotunes the kernels of a model for steps of each of `tokens` tokens and stores the choices.
///
/// # Errors
///
/// If the device fails or the cache cannot be written.
pub(super) fn tune(model: &dyn Model, tokens: &[usize], quiet: bool) -> anyhow::Result<Vec<TunedRow>> {
    let progress = Progress::start("tuning", quiet);
    let tuning = model.tune(tokens, &mut |done, total| progress.set(done, total))?;
    drop(progress);
    for table in &tuning.tables {
        store(table)?;
    }
    Ok(tuning.products.into_iter().map(TunedRow::from).collect())
}

impl From<TunedProduct> for TunedRow {
    fn from(product: TunedProduct) -> Self {
        let TunedProduct {
            device,
            rows,
            cols,
            matrices,
            tokens,
            added,
            candidates,
            predicted,
            predicted_ns,
            chosen,
            chosen_ns,
        } = product;
        Self {
            device,
            rows,
            cols,
            matrices,
            tokens,
            added,
            candidates,
            predicted,
            predicted_ns,
            chosen,
            chosen_ns,
        }
    }
}

/// Possible paths of the table of a device, in order of preference.
fn files(device: &str) -> impl Iterator<Item = PathBuf> {
    // Device names may contain characters that are invalid in file names.
    let plain: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    shipped::folders().map(move |folder| folder.join("tuned").join(format!("{plain}.txt")))
}

/// Writes a table to the first writable folder.
fn store(table: &TunedTable) -> anyhow::Result<()> {
    let mut last = None;
    for file in files(&table.device) {
        let folder = file.parent().unwrap_or(&file);
        let written = fs::create_dir_all(folder).and_then(|()| OutputFile::replace(&file, &table.text));
        match written {
            Ok(()) => return Ok(()),
            Err(error) => last = Some(anyhow::anyhow!("cannot write {}: {error}", file.display())),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("the tuned kernels need a folder: set XDG_CACHE_HOME")))
}

//! Changing a packed tensor of a directory in place.

use std::{
    fs::OpenOptions,
    io::{Seek, SeekFrom, Write},
    path::PathBuf,
};

use super::{HfDir, Stored, packed::Packed, parts};
use crate::{FormatError, Tensor, TensorSource, error::Place, spill::io_error};

impl HfDir {
    /// Writes `tensor` over the packed tensor of that name, in place: only bytes that differ are written, in the order of the
    /// file. The directory is closed, because a file must not change while it is open.
    ///
    /// # Errors
    ///
    /// [`FormatError::MissingTensor`]; [`FormatError::Write`] when the stored tensor is not packed, or has another shape, encoding
    /// or size, before anything is written; [`FormatError::Io`].
    pub fn overwrite(self, name: &str, tensor: &Tensor) -> Result<(), FormatError> {
        let place = Place { path: &self.path, tensor: name };
        let entry = self.entries.get(name).ok_or_else(|| place.missing())?;
        let refuse = |reason: &str, remedy: &str| FormatError::Write {
            path: self.path().to_owned(),
            what: format!("`{name}`"),
            reason: reason.to_owned(),
            remedy: remedy.to_owned(),
        };
        let Stored::Packed(description, stored) = &entry.stored else {
            return Err(refuse(
                "it is not packed by Trike",
                "convert the model with `trike convert --to trike`",
            ));
        };
        if Packed::of(tensor).as_ref() != Some(description) {
            return Err(refuse(
                "it has another shape or encoding",
                "give a tensor like the one that is stored",
            ));
        }
        let mut changes: Vec<(PathBuf, u64, Vec<u8>)> = Vec::new();
        for (suffix, _, _, new) in parts::pack(tensor) {
            let found = stored.iter().find(|(s, ..)| *s == suffix);
            let Some((_, file, slot)) = found.filter(|(_, _, slot)| slot.len == new.len()) else {
                return Err(refuse(
                    "with these trits it takes another number of bytes",
                    "convert the model with `--encoding base3`, `2bit` or `planes`, whose size does not depend on them",
                ));
            };
            let container = &self.containers[*file];
            let differs: Vec<bool> = container.bytes(slot).iter().zip(&new).map(|(a, b)| a != b).collect();
            let mut at = 0;
            for run in differs.chunk_by(|a, b| a == b) {
                if run[0] {
                    let offset = (slot.start() + at) as u64;
                    changes.push((container.path().to_owned(), offset, new[at..at + run.len()].to_vec()));
                }
                at += run.len();
            }
        }
        drop(self);
        for (path, offset, bytes) in changes {
            let write = || -> std::io::Result<()> {
                let mut file = OpenOptions::new().write(true).open(&path)?;
                file.seek(SeekFrom::Start(offset))?;
                file.write_all(&bytes)?;
                file.sync_data()
            };
            write().map_err(|e| io_error(&path, "write", e))?;
        }
        Ok(())
    }
}

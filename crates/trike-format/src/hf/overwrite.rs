//! Overwriting a packed tensor of a directory in place.

use std::{
    fs::OpenOptions,
    io::{Seek, SeekFrom, Write},
    path::PathBuf,
};

use super::{HfDir, Stored, parts};
use crate::{
    FormatError, Tensor, TensorSource,
    error::{Place, io_error},
};

impl HfDir {
    /// Overwrites the packed tensor `name` in place with `tensor`: only bytes that differ are written, in file order. Consumes
    /// the reader, because a file must not change while it is open.
    ///
    /// # Errors
    ///
    /// Before anything is written: [`FormatError::MissingTensor`], [`FormatError::NotPacked`], [`FormatError::PackedSize`], and
    /// [`FormatError::Write`] if the shape or encoding differs. [`FormatError::Io`].
    pub fn overwrite(self, name: &str, tensor: &Tensor) -> Result<(), FormatError> {
        let place = Place { path: &self.path, tensor: name };
        let entry = self.entries.get(name).ok_or_else(|| place.missing())?;
        let Stored::Packed(description, stored) = &entry.stored else {
            return Err(FormatError::NotPacked { path: self.path().to_owned(), tensor: name.to_owned() });
        };
        if description.like(tensor).as_ref() != Some(description) {
            return Err(FormatError::Write {
                path: self.path().to_owned(),
                what: format!("`{name}`"),
                reason: "its shape or encoding differs from the stored tensor".to_owned(),
                remedy: "give a tensor with the stored shape and encoding".to_owned(),
            });
        }
        let mut changes: Vec<(PathBuf, u64, Vec<u8>)> = Vec::new();
        for (suffix, _, _, new) in parts::pack(place, description, tensor)? {
            let found = stored.iter().find(|(s, ..)| *s == suffix);
            let Some((_, file, slot)) = found.filter(|(_, _, slot)| slot.len == new.len()) else {
                return Err(FormatError::PackedSize {
                    path: self.path().to_owned(),
                    tensor: name.to_owned(),
                });
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

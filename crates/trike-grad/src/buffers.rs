//! Reuse of the memory of activations and gradients.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::GradError;

/// Buffers that the tapes of successive steps share: a clone refers to the same buffers.
///
/// A training step allocates the same sizes every time. Returning large allocations to the operating system and
/// faulting them in again would cost more than many of the operations that write to them.
///
/// ```
/// use trike_grad::Buffers;
///
/// let buffers = Buffers::default();
/// buffers.give(vec![0.0; 100]);
/// assert_eq!(buffers.bytes(), 400);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Buffers(Arc<Mutex<BTreeMap<usize, Vec<Vec<f32>>>>>);

impl Buffers {
    /// A buffer of `len` elements with arbitrary contents; NaN in builds with debug assertions.
    pub(crate) fn take(&self, len: usize) -> Result<Vec<f32>, GradError> {
        let reused = self.lock().get_mut(&len).and_then(Vec::pop);
        let mut buffer = match reused {
            Some(buffer) => buffer,
            None => {
                let mut buffer = Vec::new();
                buffer.try_reserve_exact(len).map_err(|_| GradError::Memory { elements: len })?;
                buffer.resize(len, 0.0);
                buffer
            }
        };
        if cfg!(debug_assertions) {
            buffer.fill(f32::NAN);
        }
        Ok(buffer)
    }

    /// A copy of a slice, for an [`Operation`](crate::Operation) of another crate: an output that is not from here would enlarge the
    /// pool when the tape returns it.
    ///
    /// # Errors
    ///
    /// [`GradError::Memory`].
    pub fn copy(&self, of: &[f32]) -> Result<Vec<f32>, GradError> {
        let mut buffer = self.take(of.len())?;
        buffer.copy_from_slice(of);
        Ok(buffer)
    }

    /// Returns memory for reuse, such as a gradient that the optimizer has read.
    pub fn give(&self, buffer: Vec<f32>) {
        if !buffer.is_empty() {
            self.lock().entry(buffer.len()).or_default().push(buffer);
        }
    }

    /// Size of the unused buffers in bytes.
    pub fn bytes(&self) -> usize {
        self.lock().iter().map(|(len, buffers)| 4 * len * buffers.len()).sum()
    }

    /// Releases the unused buffers.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Vec<Vec<f32>>>> {
        // A panic between the calls above leaves the map intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffers, GradError};

    #[test]
    fn too_much_memory_is_an_error() {
        let refused = Buffers::default().take(usize::MAX / 8);
        assert!(matches!(refused, Err(GradError::Memory { elements }) if elements == usize::MAX / 8));
    }
}

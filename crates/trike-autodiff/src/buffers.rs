//! Reuse of the memory of activations and gradients.

use std::borrow::BorrowMut;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::{Elements, TapeEngine};
use crate::error::GradError;

/// Buffers that the tapes of successive steps share: a clone refers to the same buffers.
///
/// A training step allocates the same sizes every time. Returning large allocations to the operating system and
/// faulting them in again would cost more than many of the operations that write to them.
///
/// ```
/// use trike_autodiff::Buffers;
///
/// let buffers = Buffers::default();
/// buffers.give(vec![0.0; 100]);
/// assert_eq!(buffers.bytes(), 400);
/// ```
pub struct Buffers<T = Vec<f32>>(Arc<Mutex<Unused<T>>>);

/// Unused tensors by their length.
type Unused<T> = BTreeMap<usize, Vec<T>>;

impl<T> Clone for Buffers<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Buffers<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Elements> std::fmt::Debug for Buffers<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers").field("bytes", &self.bytes()).finish()
    }
}

impl<T: Elements> Buffers<T> {
    /// An unused buffer of this length.
    fn unused(&self, len: usize) -> Option<T> {
        self.lock().get_mut(&len).and_then(Vec::pop)
    }

    /// Returns memory for reuse, such as a gradient that the optimizer has read.
    pub fn give(&self, buffer: T) {
        if buffer.elements() > 0 {
            self.lock().entry(buffer.elements()).or_default().push(buffer);
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

    fn lock(&self) -> std::sync::MutexGuard<'_, Unused<T>> {
        // A panic between the calls above leaves the map intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer of `len` elements with arbitrary contents; NaN in builds with debug assertions.
pub(crate) fn take<E: TapeEngine>(
    engine: &E,
    buffers: &Buffers<E::Tensor>,
    len: usize,
) -> Result<E::Tensor, GradError> {
    let mut buffer = match buffers.unused(len) {
        Some(buffer) => buffer,
        None => engine.allocate(len)?,
    };
    if cfg!(debug_assertions) {
        engine.fill(buffer.borrow_mut(), f32::NAN)?;
    }
    Ok(buffer)
}

impl Buffers {
    /// A copy of a slice, for an [`Operation`](crate::Operation) of another crate. The tape returns outputs to this pool, so an
    /// output allocated elsewhere would enlarge it.
    ///
    /// # Errors
    ///
    /// [`GradError::Memory`].
    pub fn copy(&self, of: &[f32]) -> Result<Vec<f32>, GradError> {
        let reused = self.unused(of.len());
        let mut buffer = reused.unwrap_or_default();
        buffer.clear();
        buffer.try_reserve_exact(of.len()).map_err(|_| GradError::Memory { elements: of.len() })?;
        buffer.extend_from_slice(of);
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffers, GradError, take};

    #[test]
    fn too_much_memory_is_an_error() {
        let cpu = trike_cpu::Cpu::new(1).expect("a thread");
        let refused = take(&cpu, &Buffers::default(), usize::MAX / 8);
        assert!(matches!(refused, Err(GradError::Memory { elements }) if elements == usize::MAX / 8));
    }
}

//! Conversion of elements to f32.

use std::arch::x86_64::*;

use super::load;
use crate::kernels::Element;

/// The elements after the last whole chunk, padded with zeros.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_tail<E: Element>(tail: &[E]) -> __m512 {
    let mut padded = [E::ZERO; 16];
    padded[..tail.len()].copy_from_slice(tail);
    load(&padded)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(to: &mut [f32; 16], lanes: __m512) {
    // SAFETY: the array has room for 16 f32, and the store has no alignment requirement.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), lanes) };
}

#[target_feature(enable = "avx512f,avx2,f16c")]
pub(super) fn widen<E: Element>(from: &[E], to: &mut [f32]) {
    let (chunks, tail) = from.as_chunks::<16>();
    let (to, rest) = to.as_chunks_mut::<16>();
    for (from, to) in chunks.iter().zip(to) {
        store(to, load(from));
    }
    let mut last = [0.0; 16];
    store(&mut last, load_tail(tail));
    rest.copy_from_slice(&last[..rest.len()]);
}

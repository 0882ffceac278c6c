//! Storage formats of the KV cache, as the kernels read them.

use crate::kernels::Element;

/// Stored keys and values: elements that the kernels load directly, or bytes of two codes that are unpacked first.
pub(super) trait Cached: bytemuck::Pod + Send + Sync {
    /// The type that kernels load.
    type Element: Element;
    /// Whether the elements of a head are Hadamard-transformed ([`int4`](super::int4)).
    const MIXED: bool = false;

    /// Number of stored items per head and position.
    fn width(head_dim: usize) -> usize;

    /// The elements of some heads, unpacked to `room` if necessary.
    fn elements<'a>(heads: &'a [Self], head_dim: usize, room: &'a mut Vec<i8>) -> &'a [Self::Element];
}

impl<E: Element + bytemuck::Pod> Cached for E {
    type Element = Self;

    #[inline(always)]
    fn width(head_dim: usize) -> usize {
        head_dim
    }

    #[inline(always)]
    fn elements<'a>(heads: &'a [Self], _: usize, _: &'a mut Vec<i8>) -> &'a [Self] {
        heads
    }
}

/// Two codes of four bits.
impl Cached for u8 {
    type Element = i8;
    const MIXED: bool = true;

    #[inline(always)]
    fn width(head_dim: usize) -> usize {
        super::int4::bytes(head_dim)
    }

    #[inline(always)]
    fn elements<'a>(heads: &'a [Self], head_dim: usize, room: &'a mut Vec<i8>) -> &'a [i8] {
        let width = Self::width(head_dim);
        let len = heads.len() / width * head_dim;
        if room.len() < len {
            room.resize(len, 0);
        }
        let room = &mut room[..len];
        for (head, to) in heads.chunks_exact(width).zip(room.chunks_exact_mut(head_dim)) {
            super::int4::unpack(head, to);
        }
        room
    }
}

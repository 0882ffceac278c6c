//! Memory in cache lines, so that no vector load crosses one.

/// Sixty-four aligned bytes of something.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// 256 two-bit codes: byte `j` holds elements `j`, `j + 64`, `j + 128`, `j + 192`, lowest bits first.
pub(crate) type CodeLine = Line<[u8; 64]>;
/// 64 int8 activations.
pub(crate) type ByteLine = Line<[i8; 64]>;
/// 16 sums of four neighbouring int8 activations.
pub(crate) type SumLine = Line<[i32; 16]>;
/// 16 f32 activations.
pub(crate) type FloatLine = Line<[f32; 16]>;

/// Weights in a [`CodeLine`].
pub(crate) const BLOCK: usize = 256;
/// Rows that lie interleaved, line by line.
pub(crate) const TILE: usize = 4;

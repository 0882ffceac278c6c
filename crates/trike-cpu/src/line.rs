//! Cache line types of the kernels.

use trike_host::CacheLine;

/// 64 codes or packed bytes of ternary weights, depending on the layout.
pub(crate) type CodeLine = CacheLine<[u8; 64]>;
/// Lookup table of the slots of sparse weights: activations, and a zero at the end.
pub(crate) type TableLine = CacheLine<[i8; 128]>;
/// Sixteen i32, one per row.
pub(crate) type IntLine = CacheLine<[i32; 16]>;
/// Sixteen f32, one per row.
pub(crate) type FloatLine = CacheLine<[f32; 16]>;

/// Rows per tile of ternary and int8 weights: the 32-bit lanes of the widest vector.
pub(crate) const ROWS: usize = 16;
/// Rows per tile of dense weights.
pub(crate) const TILE: usize = 4;

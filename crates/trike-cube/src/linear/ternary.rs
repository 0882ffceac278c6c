//! Ternary weights in the layout of the kernels.

use half::f16;
use trike_trit::{Coupling, Granularity, Hadamard, ScaleValues, TritTensor};

use super::shape::{BLOCK, MAX_COLS};
use crate::device::{Buffer, CubeDevice};
use crate::error::{CubeError, Result, check_range, check_shape, unsupported};

/// Rows per tile.
pub const TILE: usize = 16;
/// Columns per block in the base-3 layout.
pub(crate) const BASE3_BLOCK: usize = 160;
/// Lanes that read a tile's block, with one vector of four words per lane and plane.
const LANES: usize = 32;
/// Maximum matrices that one launch multiplies with the same activations.
pub const MAX_PARTS: usize = 3;
/// Maximum planes that fit a signed byte when folded: `(3^5 - 1) / 2 = 121`.
const FOLDED: usize = 5;

/// Memory layout of ternary weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TernaryLayout {
    /// Two bits per weight: supported by every kernel, least work per weight.
    #[default]
    TwoBit,
    /// Five weights per byte: the smallest layout. One plane per set, and only the few-token kernel.
    Base3,
    /// Two bits per weight with zero blocks of 16 rows by 128 columns omitted, for block sparsity. No means, and only the
    /// few-token kernel.
    Blocks,
}

/// One or more trit tensors with the same columns on a device (q/k/v, gate/up): one launch, several outputs.
///
/// ```text
/// codes    [tile][set][block][plane][lane][word i of 4]: two bits, two's complement; trit + 1 in sets of several planes
/// lane     4 g + t
/// word i   field j (bits 2j, 2j+1 of each byte), byte b: row 16 tile + g + 8 (j & 1),
///          column 128 block + 32 i + 16 (j >> 1) + 4 t + b
/// scales   [tile][set][group][row of the tile], means without the sets
/// ```
///
/// With [`TernaryLayout::Base3`] a block is 160 columns, `[tile][set][block][lane][word i of 4]`, and a byte is
/// `ceil(256 / 243 (81 d0 + 27 d1 + 9 d2 + 3 d3 + d4))`, so that multiplying a byte by three carries the next digit out above
/// its eight bits. Digit `e` of word `i` is field `f = 5i + e`: row `16 tile + g + 8 (f & 1)`, column
/// `160 block + 16 (f >> 1) + 4 t + b`.
///
/// A lane loads one vector of 16 bytes, `(word << 6 - 2j) & 0xC0C0C0C0` are the four weights times 64 that pair with one word
/// of the activations in a 4-byte dot product, and the four fields are also the lane's part of a 16 x 32 operand of the matrix
/// instruction. Both use the same unpacking.
///
/// With [`TernaryLayout::Blocks`] the codes are `[stored block][set][plane][lane][word i of 4]`; a separate index holds, per
/// tile, the number of blocks stored before it, then the block numbers of all stored blocks.
///
/// Each *set* of planes has its own scales; the planes of a set are folded into one small integer, `3^(p-1) t0 + ... + t(p-1)`:
/// tied planes form one set (two for six planes, which do not fit a byte), free planes one set each. Tiles are padded with rows
/// of trit zero and scale zero, blocks with columns of trit zero.
#[derive(Clone, Debug)]
pub struct CubeTernaryMatrix {
    form: TernaryForm,
    /// Planes of the tensors; the sets may have one padding plane more.
    depth: usize,
    rotation: Option<Hadamard>,
    pub(crate) codes: Buffer<u32>,
    pub(crate) index: Option<Buffer<u32>>,
    pub(crate) scales: Shared,
    pub(crate) means: Option<Shared>,
    /// Counters for cubes that split columns, on devices whose kernels do so in one launch.
    pub(crate) arrived: Option<Buffer<u32>>,
}

/// Properties of a ternary matrix that plans and kernels depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TernaryForm {
    /// Rows of the parts, 1 to [`MAX_PARTS`] of them.
    pub parts: Vec<usize>,
    /// Columns.
    pub cols: usize,
    /// Group size in columns, or `None` for one scale per row.
    pub group: Option<usize>,
    /// Sets of planes; each set has its own scales.
    pub sets: usize,
    /// Planes per set.
    pub planes: usize,
    /// Groups have means.
    pub means: bool,
    /// Scales and means are f16 instead of f32.
    pub f16_scales: bool,
    /// Memory layout of the weights.
    pub layout: TernaryLayout,
    /// Number of stored blocks, counted once for all planes; less than all only with [`TernaryLayout::Blocks`].
    pub stored: usize,
}

impl TernaryForm {
    /// Rows of all parts.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.parts.iter().sum()
    }

    /// Tiles of all parts; each part starts a new tile.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.parts.iter().map(|rows| rows.div_ceil(TILE)).sum()
    }

    /// Blocks of 128 columns.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// Groups per row.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.group.map_or(1, |group| self.cols.div_ceil(group))
    }

    /// Bytes read by a kernel.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let scales = self.tiles() * TILE * self.groups() * (self.sets + usize::from(self.means));
        let index = if self.layout == TernaryLayout::Blocks { self.tiles() + 1 + self.stored } else { 0 };
        (self.code_words() + index) * 4 + scales * if self.f16_scales { 2 } else { 4 }
    }

    /// Words of the codes.
    #[must_use]
    pub fn code_words(&self) -> usize {
        self.stored * self.sets * self.planes * LANES * 4
    }

    /// Vectors per lane along a row (= blocks per row).
    #[must_use]
    pub fn steps(&self) -> usize {
        match self.layout {
            TernaryLayout::TwoBit | TernaryLayout::Blocks => self.blocks(),
            TernaryLayout::Base3 => self.cols.div_ceil(BASE3_BLOCK),
        }
    }

    /// Checks that kernels support the form.
    pub(crate) fn validate(&self) -> Result<()> {
        check_range("parts of a ternary matrix", 1, MAX_PARTS, self.parts.len())?;
        check_range("columns of a ternary matrix", 1, MAX_COLS, self.cols)?;
        if self.layout == TernaryLayout::Base3 && self.planes > 1 {
            let property = format!("{} tied trit planes", self.planes);
            return unsupported("TernaryLayout::Base3", property, "use TernaryLayout::TwoBit");
        }
        check_range("trit planes of a set", 1, FOLDED, self.planes)?;
        check_range("sets of planes", 1, trike_trit::MAX_DEPTH, self.sets)?;
        for &rows in &self.parts {
            check_shape("ternary matrix", rows.next_multiple_of(TILE), self.blocks() * BLOCK)?;
        }
        check_range("stored blocks", 0, self.tiles().saturating_mul(self.steps()), self.stored)?;
        check_shape(
            "codes of a ternary matrix",
            self.tiles(),
            self.steps() * self.sets * self.planes * LANES * 4,
        )?;
        if self.layout == TernaryLayout::Blocks && self.means {
            return unsupported("TernaryLayout::Blocks", "group means", "use TernaryLayout::TwoBit");
        }
        if let Some(group) = self.group {
            check_range("columns of a group", 32, 256, group)?;
            if !group.is_power_of_two() {
                return Err(CubeError::NotMultiple { what: "columns of a group", unit: 32, got: group });
            }
        }
        Ok(())
    }
}

/// Scales or means on the device.
#[derive(Clone, Debug)]
pub(crate) enum Shared {
    F16(Buffer<f16>),
    F32(Buffer<f32>),
}

impl Shared {
    fn upload(device: &CubeDevice, values: &[f32], f16_scales: bool) -> Result<Self> {
        Ok(if f16_scales {
            let values: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
            Self::F16(device.upload_weights(&values)?)
        } else {
            Self::F32(device.upload_weights(values)?)
        })
    }
}

impl CubeTernaryMatrix {
    /// Packs tensors with equal columns, grouping, planes and coupling; the weights' values are unchanged.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for zero tensors, more than [`MAX_PARTS`], or rows longer than [`MAX_COLS`];
    /// [`CubeError::Mismatch`] when the tensors differ in a property that must be equal; [`CubeError::Shape`] and
    /// [`CubeError::Memory`] for tensors too large for the device.
    pub fn pack(device: &CubeDevice, tensors: &[&TritTensor]) -> Result<Self> {
        Self::pack_as(device, tensors, TernaryLayout::TwoBit)
    }

    /// [`CubeTernaryMatrix::pack`] in a chosen layout.
    ///
    /// # Errors
    ///
    /// As [`CubeTernaryMatrix::pack`]; [`CubeError::Unsupported`] for tied planes in [`TernaryLayout::Base3`] and for
    /// means in [`TernaryLayout::Blocks`].
    pub fn pack_as(device: &CubeDevice, tensors: &[&TritTensor], layout: TernaryLayout) -> Result<Self> {
        let form = form_of(tensors, device.capabilities().f16, layout)?;
        let mut host = pack(&form, tensors)?;
        let mut form = form;
        let mut index = None;
        if layout == TernaryLayout::Blocks {
            let kept = without_zeros(&mut form, &mut host.codes);
            index = Some(device.upload_weights(&kept)?);
        }
        Ok(Self {
            codes: device.upload_weights(&host.codes)?,
            index,
            scales: Shared::upload(device, &host.scales, form.f16_scales)?,
            means: host.means.map(|means| Shared::upload(device, &means, form.f16_scales)).transpose()?,
            arrived: device.capabilities().int8_mma.then(|| device.counters()).transpose()?,
            depth: tensors[0].depth(),
            rotation: tensors[0].rotation(),
            form,
        })
    }

    /// Returns true if tensors can be packed into one matrix: at most [`MAX_PARTS`], equal in every required property, and
    /// together within the device's maximum allocation.
    #[must_use]
    pub fn can_join(device: &CubeDevice, tensors: &[&TritTensor], layout: TernaryLayout) -> bool {
        let capabilities = device.capabilities();
        form_of(tensors, capabilities.f16, layout)
            .is_ok_and(|form| form.bytes() as u64 <= capabilities.max_buffer_bytes)
    }

    /// Properties that kernels depend on.
    #[must_use]
    pub fn form(&self) -> &TernaryForm {
        &self.form
    }

    /// Planes of the packed tensors.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The words of the codes.
    #[doc(hidden)]
    #[must_use]
    pub fn codes(&self) -> &Buffer<u32> {
        &self.codes
    }

    /// The rotation that activations need before the product.
    #[must_use]
    pub fn rotation(&self) -> Option<Hadamard> {
        self.rotation
    }

    /// Device memory of the matrix in bytes; equals the bytes read by a kernel.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.form.bytes()
    }
}

/// Checks that a part's property equals that of the first part.
fn check_same<T: PartialEq + std::fmt::Debug>(
    part: usize,
    property: &'static str,
    expected: &T,
    got: &T,
) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(CubeError::Mismatch {
        what: format!("{property} of part {part} of a packed matrix"),
        expected: format!("{expected:?} as in part 0"),
        got: format!("{got:?}"),
        remedy: "pack the tensors as separate matrices",
    })
}

/// The common form of the tensors; an error when they differ.
pub fn form_of(tensors: &[&TritTensor], f16: bool, layout: TernaryLayout) -> Result<TernaryForm> {
    check_range("parts of a ternary matrix", 1, MAX_PARTS, tensors.len())?;
    let first = tensors[0];
    let kind = |t: &TritTensor| match t.scales().granularity() {
        Granularity::Tensor | Granularity::Row => None,
        Granularity::Group(size) => Some(size.get()),
    };
    for (part, tensor) in tensors.iter().enumerate() {
        check_same(part, "columns", &first.cols(), &tensor.cols())?;
        check_same(part, "trit planes", &first.depth(), &tensor.depth())?;
        let block = |t: &TritTensor| t.rotation().map_or(1, Hadamard::block);
        check_same(part, "rotation block (1 = none)", &block(first), &block(tensor))?;
        check_same(part, "coupling of trit planes", &first.coupling(), &tensor.coupling())?;
        let group = |t: &TritTensor| kind(t).unwrap_or(0);
        check_same(part, "columns of a group (0 = no groups)", &group(first), &group(tensor))?;
    }
    let depth = first.depth();
    let (sets, planes) = match first.coupling() {
        Coupling::Free => (depth, 1),
        Coupling::Tied if depth <= FOLDED => (1, depth),
        Coupling::Tied => (2, depth.div_ceil(2)),
    };
    let exact = |values: &ScaleValues| matches!(values, ScaleValues::F16(_));
    // Scales of folded planes are divided by a power of three and are not exact in f16.
    let f16_scales = f16
        && planes == 1
        && tensors.iter().all(|t| exact(t.scales().values()) && t.scales().means().is_none_or(exact));
    let form = TernaryForm {
        parts: tensors.iter().map(|t| t.rows()).collect(),
        cols: first.cols(),
        group: kind(first),
        sets,
        planes,
        means: tensors.iter().any(|t| t.scales().means().is_some()),
        f16_scales,
        layout,
        stored: 0,
    };
    let stored = form.tiles().checked_mul(form.steps());
    let shape = CubeError::Shape { what: "ternary matrix", rows: form.rows(), cols: form.cols };
    let form = TernaryForm { stored: stored.ok_or(shape)?, ..form };
    form.validate()?;
    Ok(form)
}

/// The buffers of a matrix on the host.
pub struct Packed {
    /// Words of trits.
    pub codes: Vec<u32>,
    /// One scale per set, group and row of a tile.
    pub scales: Vec<f32>,
    /// Likewise one mean per group and row.
    pub means: Option<Vec<f32>>,
}

/// Packs tensors accepted by `form_of`.
pub fn pack(form: &TernaryForm, tensors: &[&TritTensor]) -> Result<Packed> {
    let (sets, planes, groups) = (form.sets, form.planes, form.groups());
    let mut codes = vec![0u32; form.code_words()];
    let mut scales = vec![0.0; form.tiles() * sets * groups * TILE];
    let mut means = form.means.then(|| vec![0.0; form.tiles() * groups * TILE]);
    let tiles = tensors.iter().flat_map(|t| (0..t.rows().div_ceil(TILE)).map(move |tile| (*t, tile)));
    let per_tile = codes.len() / form.tiles();
    let code = code_of(planes);
    // Sixteen rows of one plane, padded with trit zero.
    let width = form.cols.next_multiple_of(BLOCK).max(form.cols.next_multiple_of(BASE3_BLOCK));
    let mut trits = vec![0i8; TILE * width];
    for ((number, (tensor, tile)), codes) in tiles.enumerate().zip(codes.chunks_exact_mut(per_tile)) {
        let rows = tile * TILE..((tile + 1) * TILE).min(tensor.rows());
        for set in 0..sets {
            for plane in 0..planes {
                trits.fill(0);
                if let Some(of) = plane_of(tensor, sets, planes, set, plane) {
                    for (row, trits) in rows.clone().zip(trits.chunks_exact_mut(width)) {
                        tensor.read_row(of, row, &mut trits[..form.cols])?;
                    }
                }
                for block in 0..form.steps() {
                    let at = ((set * form.steps() + block) * planes + plane) * LANES * 4;
                    match form.layout {
                        TernaryLayout::TwoBit | TernaryLayout::Blocks => {
                            pack_block(&trits, width, block, code, &mut codes[at..at + LANES * 4]);
                        }
                        TernaryLayout::Base3 => {
                            pack_base3(&trits, width, block, &mut codes[at..at + LANES * 4]);
                        }
                    }
                }
            }
            // The folded integer is multiplied by the scale of the set's last plane.
            let last = (0..planes).rev().find_map(|plane| plane_of(tensor, sets, planes, set, plane));
            for (r, row) in rows.clone().enumerate() {
                for group in 0..groups {
                    scales[((number * sets + set) * groups + group) * TILE + r] =
                        tensor.scale(last.unwrap_or(0), row, group)?;
                }
            }
        }
        if let Some(means) = &mut means {
            for (r, row) in rows.clone().enumerate() {
                for group in 0..groups {
                    means[(number * groups + group) * TILE + r] = tensor.mean(row, group)?;
                }
            }
        }
    }
    Ok(Packed { codes, scales, means })
}

/// The tensor's plane at index `plane` of a set; the first set may begin with one padding plane.
fn plane_of(tensor: &TritTensor, sets: usize, planes: usize, set: usize, plane: usize) -> Option<usize> {
    (set * planes + plane).checked_sub(sets * planes - tensor.depth())
}

/// The two bits of a trit, in sets of `planes` planes.
pub(super) fn code_of(planes: usize) -> fn(i8) -> u8 {
    if planes == 1 { |trit| trit as u8 & 3 } else { |trit| (trit + 1) as u8 }
}

/// One block of sixteen rows: 32 lanes of four words.
fn pack_block(trits: &[i8], width: usize, block: usize, code: fn(i8) -> u8, out: &mut [u32]) {
    for (lane, words) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for (i, word) in words.iter_mut().enumerate() {
            *word = (0..4).fold(0, |word, j| {
                let at = (g + 8 * (j & 1)) * width + block * BLOCK + 32 * i + 16 * (j >> 1) + 4 * t;
                let four = u32::from_le_bytes([0, 1, 2, 3].map(|b| code(trits[at + b])));
                word | four << (2 * j)
            });
        }
    }
}

/// Omits the blocks whose words are all trit zero, and makes the planes of the others contiguous. Returns the index of the
/// stored blocks.
pub fn without_zeros(form: &mut TernaryForm, codes: &mut Vec<u32>) -> Vec<u32> {
    // Sixteen trits of zero.
    let zeros = 0x5555_5555 * u32::from(code_of(form.planes)(0));
    let (blocks, vectors) = (form.blocks(), form.planes * LANES * 4);
    let mut index = vec![0];
    let (mut numbers, mut kept) = (Vec::new(), Vec::new());
    for tile in codes.chunks_exact(form.sets * blocks * vectors) {
        for block in 0..blocks {
            let sets = || tile.chunks_exact(blocks * vectors).map(|set| &set[block * vectors..][..vectors]);
            if sets().any(|words| words.iter().any(|&word| word != zeros)) {
                sets().for_each(|words| kept.extend_from_slice(words));
                numbers.push(block as u32);
            }
        }
        index.push(numbers.len() as u32);
    }
    form.stored = numbers.len();
    // Buffers must not be empty and must hold a whole vector.
    if kept.is_empty() {
        kept.resize(4, zeros);
    }
    *codes = kept;
    index.extend(numbers);
    index
}

/// Packs one block of five trits per byte.
fn pack_base3(trits: &[i8], width: usize, block: usize, out: &mut [u32]) {
    for (lane, words) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for (i, word) in words.iter_mut().enumerate() {
            *word = u32::from_le_bytes([0, 1, 2, 3].map(|b| {
                let digits = (5 * i..5 * i + 5).fold(0u32, |value, f| {
                    let at = (g + 8 * (f & 1)) * width + block * BASE3_BLOCK + 16 * (f >> 1) + 4 * t + b;
                    3 * value + (trits[at] + 1) as u32
                });
                (256 * digits).div_ceil(243) as u8
            }));
        }
    }
}

//! Ternary weights in the layouts of the kernels.

use std::ops::Range;

use half::f16;
use trike_trit::{Coupling, Granularity, GroupSize, Hadamard, TritTensor};

use crate::error::{CpuError, check_range};
use crate::kernels::{Kernels, with_float_kernels};
use crate::line::{CodeLine, FloatLine, ROWS};
use crate::matrix::blocks::Blocks;
use crate::matrix::shares::{Share, for_tiles};
use crate::matrix::sparse::Sparse;
use crate::rotate::Rotate;
use crate::simd::Simd;
use trike_core::{Layout, TileLayout, TritShape};
use trike_host::Lines;
use trike_host::Loop;
use trike_host::isa::Scalar;
use trike_host::{CacheLine, Isa};
use trike_host::{Cpu, Pool};

/// Maximum columns of a ternary matrix. Integer sums never span more than 16,320 columns, so this only bounds lengths.
pub const MAX_COLS: usize = 1 << 20;

/// Maximum planes folded into one small integer when weights are unpacked: `3^4 = 81` codes fit the exact integer
/// products of every instruction set.
pub(crate) const FOLDED: usize = 4;

/// A trit tensor packed for the kernels: tiles of sixteen rows, in one of the [`Layout`]s.
///
/// ```text
/// tile:  rows 16t .. 16t+16, their weights line by line (64 bytes); one sequential stream
/// line:  four bytes per row, row after row; their content depends on the layout
/// all:   [tile][plane][line], padded with trit zero to whole lines and tiles
/// ```
///
/// [`Layout::Sparse`] stores one byte per nonzero instead, with the same number of lines for every tile; nonzeros that
/// do not fit are listed separately. [`Layout::Blocks`] omits blocks of zeros, a variable number per tile.
///
/// All-zero planes are omitted in every layout: any free one, and leading and trailing tied ones. (An all-zero plane
/// between two tied ones is omitted in [`Layout::Blocks`] and kept in the others, which fold neighbouring planes.)
///
/// Each 32-bit lane of a vector is a row, so nothing is summed across lanes, one scale per row is one vector, and a
/// range of tiles is one contiguous range of memory. Scales are stored in the same order, `[tile][plane][group][row of
/// the tile]`, in the type of the tensor. The cost: the matrix is a copy, up to 15 rows are padding, and a single row
/// is strided.
///
/// ```
/// use trike_cpu::{Layout, TernaryMatrix};
/// use trike_trit::{Encoding, Scales, TritTensor};
///
/// let trits: Vec<i8> = (0..16 * 640).map(|i| (i % 3) as i8 - 1).collect();
/// let tensor = TritTensor::from_trits(16, 640, &trits, Encoding::Base3, Scales::tensor(0.5))?;
/// let matrix = TernaryMatrix::pack(&tensor)?;
/// assert_eq!((matrix.rows(), matrix.cols(), matrix.depth()), (16, 640, 1));
/// assert_eq!(matrix.bytes(), 16 * 640 / 4 + 4);
/// let dense = TernaryMatrix::pack_as(&tensor, Layout::Base3)?;
/// assert_eq!(dense.bytes(), 16 * 640 / 5 + 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TernaryMatrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) coupling: Coupling,
    /// Planes of the tensor.
    pub(super) depth: usize,
    /// Number of nonzeros of each plane; `None` if they were not counted, in which case every plane is stored.
    pub(super) nonzeros: Option<Vec<u64>>,
    /// Sets of planes with independent scales, without all-zero ones.
    pub(super) sets: usize,
    /// Tied planes of a set, from the first to the last nonzero one.
    pub(super) planes: usize,
    /// Omitted tied planes before them: the scale of the first stored plane is `3^-skipped` of that of the set.
    pub(super) skipped: usize,
    pub(super) group: Option<GroupSize>,
    /// Padding of the columns and line layout.
    pub(super) shape: TritShape,
    pub(super) store: Store,
    pub(super) scales: Shared,
    pub(super) means: Option<Shared>,
    /// The rotation of the inputs.
    pub(super) rotation: Option<Hadamard>,
}

/// Storage of the weights.
#[derive(Clone, Debug)]
pub(super) enum Store {
    /// Every weight is stored.
    Fixed(Lines<CodeLine>),
    Sparse(Box<Sparse>),
    Blocks(Box<Blocks>),
}

/// Scales or means: one per set, or one per row of each tile, set and group.
#[derive(Clone, Debug)]
pub(super) enum Shared {
    Tensor(Vec<f32>),
    F16(Lines<[f16; ROWS]>),
    F32(Lines<[f32; ROWS]>),
}

impl Shared {
    fn bytes(&self) -> usize {
        match self {
            Self::Tensor(v) => size_of_val(v.as_slice()),
            Self::F16(v) => size_of_val::<[_]>(v),
            Self::F32(v) => size_of_val::<[_]>(v),
        }
    }

    /// The first infinity or NaN, with its index.
    pub(super) fn first_non_finite(&self) -> Option<(usize, f32)> {
        match self {
            Self::Tensor(v) => v.iter().copied().enumerate().find(|(_, v)| !v.is_finite()),
            Self::F16(v) => {
                // The largest exponent is that of infinities and NaNs.
                let tile = |tile: &[f16; ROWS]| {
                    tile.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7C00)) == 0x7C00
                };
                let tile_index = v.iter().position(tile)?;
                let row = v[tile_index].iter().position(|v| !v.is_finite())?;
                Some((tile_index * ROWS + row, v[tile_index][row].to_f32()))
            }
            Self::F32(v) => v.as_flattened().iter().copied().enumerate().find(|(_, v)| !v.is_finite()),
        }
    }

    /// The largest magnitude.
    fn largest(&self) -> f32 {
        let most = |most: f32, value: f32| most.max(value.abs());
        match self {
            Self::Tensor(v) => v.iter().copied().fold(0.0, most),
            Self::F16(v) => v.as_flattened().iter().map(|v| v.to_f32()).fold(0.0, most),
            Self::F32(v) => v.as_flattened().iter().copied().fold(0.0, most),
        }
    }

    /// The groups from `first`, or the single value of set `set` for all of them, divided by `divisor`.
    fn read<S: Kernels>(&self, s: S, set: usize, first: usize, divisor: f32, out: &mut [FloatLine]) {
        s.run(Read { s, shared: self, set, first, divisor, out });
    }
}

/// [`Shared::read`] as a separate loop, which the kernels share.
struct Read<'a, S> {
    s: S,
    shared: &'a Shared,
    set: usize,
    first: usize,
    divisor: f32,
    out: &'a mut [FloatLine],
}

impl<S: Simd> Loop for Read<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { s, shared, set, first, divisor, out } = self;
        match shared {
            Shared::Tensor(v) => out.fill(CacheLine([v[set]; ROWS])),
            Shared::F16(v) => {
                for (out, values) in out.iter_mut().zip(&v[first..]) {
                    s.store_floats(s.load_halves(values), out);
                }
            }
            Shared::F32(v) => {
                for (out, values) in out.iter_mut().zip(&v[first..]) {
                    out.0 = *values;
                }
            }
        }
        if divisor != 1.0 {
            out.iter_mut().flat_map(|line| &mut line.0).for_each(|scale| *scale /= divisor);
        }
    }
}

/// See [`TernaryMatrix::scale_room`].
pub(crate) struct ScaleRoom {
    lines: Vec<FloatLine>,
    is_constant: bool,
}

/// The scales of one set of one tile, one vector per group.
#[derive(Clone, Copy)]
pub(crate) enum Groups<'a> {
    /// As stored, FP16.
    Halves(&'a [[f16; ROWS]]),
    /// Widened to f32.
    Lines(&'a [FloatLine]),
}

impl Groups<'_> {
    /// The scales of a group.
    #[inline(always)]
    pub(crate) fn load<S: Simd>(&self, s: S, group: usize) -> S::Floats {
        match self {
            Self::Halves(v) => {
                // About the same group two tiles ahead, matching the prefetch distance of the weights.
                s.prefetch(&v[group], 2 * size_of_val(*v));
                s.load_halves(&v[group])
            }
            Self::Lines(v) => s.load_floats(&v[group]),
        }
    }
}

impl TernaryMatrix {
    /// Packs a tensor of any encoding, depth, coupling and granularity as [`Layout::TwoBit`]; all weights keep their
    /// exact values.
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`](crate::CpuError::Range) when the rows are longer than [`MAX_COLS`],
    /// [`HostError::Memory`](crate::HostError::Memory) when out of memory.
    pub fn pack(tensor: &TritTensor) -> Result<Self, CpuError> {
        Self::pack_as(tensor, Layout::TwoBit)
    }

    /// Packs a tensor in the given layout, on the current thread; [`CpuOps::pack`](crate::CpuOps::pack) uses all
    /// threads.
    ///
    /// # Errors
    ///
    /// Errors of [`TernaryMatrix::pack`]; [`CpuError::Layout`] for [`Layout::Bitmap`], which is for devices.
    pub fn pack_as(tensor: &TritTensor, layout: Layout) -> Result<Self, CpuError> {
        Self::pack_with(tensor, layout, None)
    }

    fn pack_with(tensor: &TritTensor, layout: Layout, pool: Option<&Pool>) -> Result<Self, CpuError> {
        let (rows, cols, coupling) = (tensor.rows(), tensor.cols(), tensor.coupling());
        check_range("columns of a ternary matrix", 1, MAX_COLS, cols)?;
        let scales = tensor.scales();
        let group = match scales.granularity() {
            Granularity::Group(size) => Some(size),
            Granularity::Tensor | Granularity::Row => None,
        };
        let counts = nonzeros(tensor);
        let kept = kept(coupling, &counts);
        let (sets, planes, skipped) = match (coupling, kept.first()) {
            (Coupling::Tied, Some(&first)) => (1, kept.len(), first),
            (Coupling::Tied, None) | (Coupling::Free, _) => (kept.len(), 1, 0),
        };
        let fixed = if layout == Layout::Base3 { TileLayout::Base3 } else { TileLayout::TwoBit };
        let shape = TritShape::new(fixed, cols, group);
        let halves = matches!(scales.values(), trike_trit::ScaleValues::F16(_));
        // Scales of tied planes are derived; plane 0 has the stored ones.
        let stored = |set: usize| if skipped + planes > 1 { 0 } else { kept[set] };
        let packed = shared(tensor, sets, halves, |set, row, group| tensor.scale(stored(set), row, group))?;
        let store = match layout {
            Layout::TwoBit | Layout::Base3 => Store::Fixed(pack_lines(tensor, &kept, &shape, pool)?),
            Layout::Sparse => {
                Store::Sparse(Box::new(Sparse::pack(tensor, &kept, group.map(GroupSize::get), pool)?))
            }
            Layout::Blocks => Store::Blocks(Box::new(Blocks::pack(tensor, &kept, packed.largest(), pool)?)),
            Layout::Bitmap => return Err(CpuError::Layout { layout }),
        };
        let means = match scales.means() {
            None => None,
            Some(means) => {
                let halves = matches!(means, trike_trit::ScaleValues::F16(_));
                Some(shared(tensor, 1, halves, |_, row, group| tensor.mean(row, group))?)
            }
        };
        let rotation = tensor.rotation();
        let scales = packed;
        Ok(Self {
            rows,
            cols,
            coupling,
            depth: tensor.depth(),
            nonzeros: Some(counts),
            sets,
            planes,
            skipped,
            group,
            shape,
            store,
            scales,
            means,
            rotation,
        })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Planes of the tensor, 1 to 6, including all-zero ones.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Columns per scale; `None` if there is one scale per row.
    pub fn group(&self) -> Option<GroupSize> {
        self.group
    }

    /// The rotation of the inputs, which [`CpuOps::linear`](crate::CpuOps::linear) applies.
    pub fn rotation(&self) -> Option<Hadamard> {
        self.rotation
    }

    /// The layout of the weights.
    pub fn layout(&self) -> Layout {
        match (&self.store, self.shape.layout()) {
            (Store::Sparse(_), _) => Layout::Sparse,
            (Store::Blocks(_), _) => Layout::Blocks,
            (Store::Fixed(_), TileLayout::TwoBit) => Layout::TwoBit,
            (Store::Fixed(_), TileLayout::Base3) => Layout::Base3,
        }
    }

    /// Resident size in bytes: codes, scales and means, padding included.
    pub fn bytes(&self) -> usize {
        let weights = match &self.store {
            Store::Fixed(lines) => size_of_val::<[CodeLine]>(lines),
            Store::Sparse(sparse) => sparse.bytes(),
            Store::Blocks(blocks) => blocks.bytes(),
        };
        weights + self.shared_bytes()
    }

    fn shared_bytes(&self) -> usize {
        self.scales.bytes() + self.means.as_ref().map_or(0, Shared::bytes)
    }

    /// Total cost of the tiles before `tile`, at least their bytes; used to distribute tiles over threads.
    pub(crate) fn cost_before(&self, tile: usize) -> usize {
        let tiles = self.rows.div_ceil(ROWS);
        match &self.store {
            // A tile of zeros has outputs too.
            Store::Blocks(blocks) => {
                let shared = self.shared_bytes().div_ceil(tiles) + 2 * size_of::<FloatLine>();
                blocks.bytes_before(tile, self.sets * self.planes) + tile * shared
            }
            Store::Fixed(_) | Store::Sparse(_) => tile * (self.bytes() / tiles).max(1),
        }
    }

    pub(crate) fn shape(&self) -> &TritShape {
        &self.shape
    }

    /// Sets of planes with independent scales.
    pub(crate) fn sets(&self) -> usize {
        self.sets
    }

    /// Planes of a set; the weight of plane `p` is `3^-p` of the set's scale.
    pub(crate) fn planes(&self) -> usize {
        self.planes
    }

    pub(crate) fn groups(&self) -> usize {
        self.group.map_or(1, |size| self.cols.div_ceil(size.get()))
    }

    /// All lines of a dense layout, tile by tile and plane by plane.
    #[inline(always)]
    pub(crate) fn lines(&self) -> &[CodeLine] {
        if let Store::Fixed(lines) = &self.store { lines } else { &[] }
    }

    /// The lines of one plane of one tile.
    #[inline]
    pub(crate) fn tile(&self, tile: usize, set: usize, plane: usize) -> &[CodeLine] {
        let (Store::Fixed(lines), len) = (&self.store, self.shape.lines()) else { return &[] };
        &lines[self.plane_index(tile, set, plane) * len..][..len]
    }

    /// The weights of [`Layout::Sparse`].
    #[inline(always)]
    pub(crate) fn sparse(&self) -> Option<&Sparse> {
        if let Store::Sparse(sparse) = &self.store { Some(sparse) } else { None }
    }

    /// The weights of [`Layout::Blocks`].
    pub(crate) fn blocks(&self) -> Option<&Blocks> {
        if let Store::Blocks(blocks) = &self.store { Some(blocks) } else { None }
    }

    /// The index of a plane of a tile, over all tiles.
    #[inline(always)]
    pub(crate) fn plane_index(&self, tile: usize, set: usize, plane: usize) -> usize {
        (tile * self.sets + set) * self.planes + plane
    }

    /// Room for the scales of a tile, or the scales of all sets if all tiles share them.
    pub(crate) fn scale_room(&self) -> ScaleRoom {
        let groups = self.groups();
        let is_constant = matches!(self.scales, Shared::Tensor(_));
        let mut lines = vec![CacheLine([0.0; ROWS]); if is_constant { self.sets * groups } else { groups }];
        if is_constant {
            for (set, lines) in lines.chunks_exact_mut(groups).enumerate() {
                self.scales(Scalar::portable(), 0, set, lines);
            }
        }
        ScaleRoom { lines, is_constant }
    }

    /// [`TernaryMatrix::scales`], read into `room` only if they cannot be used as stored.
    #[inline(always)]
    pub(crate) fn group_scales<'a, S: Kernels>(
        &'a self,
        s: S,
        tile: usize,
        set: usize,
        room: &'a mut ScaleRoom,
    ) -> Groups<'a> {
        if room.is_constant {
            return Groups::Lines(&room.lines[set * self.groups()..][..self.groups()]);
        }
        if let (Shared::F16(v), 1) = (&self.scales, self.skipped + self.planes) {
            return Groups::Halves(&v[(tile * self.sets + set) * self.groups()..][..self.groups()]);
        }
        self.scales(s, tile, set, &mut room.lines);
        Groups::Lines(&room.lines)
    }

    /// Factor of the integer `sum_p 3^(planes - 1 - p) trit_p` of one set, per group of a tile.
    pub(crate) fn scales<S: Kernels>(&self, kernels: S, tile: usize, set: usize, out: &mut [FloatLine]) {
        // One for a single plane.
        let divisor = 3f32.powi((self.skipped + self.planes).max(1) as i32 - 1);
        self.scales.read(kernels, set, (tile * self.sets + set) * self.groups(), divisor, out);
    }

    /// Room for the means of a tile; none if the weights have none.
    pub(crate) fn mean_room(&self) -> Vec<FloatLine> {
        vec![CacheLine([0.0; ROWS]); if self.means.is_some() { self.groups() } else { 0 }]
    }

    /// The means of one tile, one per group; returns `false` if the weights have none.
    #[inline(always)]
    pub(crate) fn means<S: Kernels>(&self, kernels: S, tile: usize, out: &mut [FloatLine]) -> bool {
        let Some(means) = &self.means else { return false };
        means.read(kernels, 0, tile * self.groups(), 1.0, out);
        true
    }

    /// Writes the weights of one row as defined by the tensor: the mean plus the sum of scale times trit over the
    /// planes, with the rotation applied.
    pub(crate) fn dequantize_row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        // Only few scales are read per row.
        let simd = Scalar::portable();
        let (tile, r) = (row / ROWS, row % ROWS);
        let len = self.group.map_or(self.cols, GroupSize::get);
        let mut shared = vec![CacheLine([0.0; ROWS]); self.groups()];
        out.fill(0.0);
        if self.means(simd, tile, &mut shared) {
            for (out, mean) in out.chunks_mut(len).zip(&shared) {
                out.fill(mean.0[r]);
            }
        }
        let mut codes = vec![0u8; self.cols];
        for set in 0..self.sets {
            self.scales.read(simd, set, (tile * self.sets + set) * self.groups(), 1.0, &mut shared);
            for plane in 0..self.planes {
                let divisor = 3f32.powi((self.skipped + plane) as i32);
                let index = self.plane_index(tile, set, plane);
                match &self.store {
                    Store::Fixed(_) => {
                        self.shape.read_row(bytemuck::cast_slice(self.tile(tile, set, plane)), r, &mut codes);
                    }
                    Store::Sparse(sparse) => sparse.read_row(index, r, &mut codes),
                    Store::Blocks(blocks) => blocks.read_row(index, r, &mut codes),
                }
                for ((out, codes), scale) in out.chunks_mut(len).zip(codes.chunks(len)).zip(&shared) {
                    let scale = scale.0[r] / divisor;
                    out.iter_mut()
                        .zip(codes)
                        .for_each(|(out, code)| *out += scale * (f32::from(*code) - 1.0));
                }
            }
        }
        if let Some(rotation) = self.rotation {
            with_float_kernels!(isa, kernels => kernels.run(Rotate { x: out, rotation }));
        }
    }

    /// Splits the planes of a set into runs of at most [`FOLDED`], each folded into one small integer.
    pub(crate) fn folds(&self) -> impl Iterator<Item = Range<usize>> + Clone {
        let (planes, runs) = (self.planes, self.planes.div_ceil(FOLDED));
        (0..runs).map(move |run| run * planes / runs..(run + 1) * planes / runs)
    }
}

/// [`CpuOps::pack`](crate::CpuOps::pack).
pub(crate) fn pack(cpu: &Cpu, tensor: &TritTensor, layout: Layout) -> Result<TernaryMatrix, CpuError> {
    TernaryMatrix::pack_with(tensor, layout, Some(cpu.pool()))
}

/// Nonzeros of each plane.
fn nonzeros(tensor: &TritTensor) -> Vec<u64> {
    let all = tensor.rows() as u64 * tensor.cols() as u64;
    (0..tensor.depth()).filter_map(|plane| Some(all - tensor.sparsity(plane)?.zeros())).collect()
}

/// The packed planes of a tensor.
pub(super) fn kept_planes(tensor: &TritTensor) -> Vec<usize> {
    kept(tensor.coupling(), &nonzeros(tensor))
}

/// The packed planes: those with a nonzero, and tied ones between two of them.
pub(super) fn kept(coupling: Coupling, nonzeros: &[u64]) -> Vec<usize> {
    let present: Vec<usize> = (0..nonzeros.len()).filter(|&plane| nonzeros[plane] > 0).collect();
    match (coupling, present.as_slice()) {
        (Coupling::Tied, [first, .., last]) => (*first..last + 1).collect(),
        (Coupling::Tied | Coupling::Free, _) => present,
    }
}

/// Packs every weight of some planes.
fn pack_lines(
    tensor: &TritTensor,
    planes: &[usize],
    shape: &TritShape,
    pool: Option<&Pool>,
) -> Result<Lines<CodeLine>, CpuError> {
    let (rows, cols, per_tile) = (tensor.rows(), tensor.cols(), planes.len() * shape.lines());
    let tiles = rows.div_ceil(ROWS);
    let mut lines = Lines::zeroed(tiles * per_tile)?;
    let work = rows * cols * planes.len();
    for_tiles(pool, work, tiles, &mut lines, &|tile| tile * per_tile, |Share { tiles, part }| {
        // Padding, in columns and rows, is trit zero.
        let padded = shape.padded_cols();
        let mut codes = vec![1u8; ROWS * padded];
        let mut trits = vec![0i8; cols];
        let places = tiles.flat_map(|tile| planes.iter().map(move |&plane| (tile, plane)));
        for ((tile, plane), lines) in places.zip(part.chunks_exact_mut(shape.lines())) {
            for (r, codes) in codes.chunks_exact_mut(padded).enumerate() {
                let row = tile * ROWS + r;
                if row < rows {
                    tensor.read_row(plane, row, &mut trits)?;
                    codes.iter_mut().zip(&trits).for_each(|(code, trit)| *code = (trit + 1).cast_unsigned());
                } else {
                    codes.fill(1);
                }
            }
            shape.pack(&codes, bytemuck::cast_slice_mut(lines));
        }
        Ok(())
    })?;
    Ok(lines)
}

/// Reorders scales or means by tile.
fn shared(
    tensor: &TritTensor,
    sets: usize,
    halves: bool,
    value: impl Fn(usize, usize, usize) -> Result<f32, trike_trit::TritError>,
) -> Result<Shared, CpuError> {
    if tensor.scales().granularity() == Granularity::Tensor {
        let values: Result<Vec<f32>, _> = (0..sets).map(|set| value(set, 0, 0)).collect();
        return Ok(Shared::Tensor(values?));
    }
    let (rows, groups) = (tensor.rows(), tensor.groups_per_row());
    let tiles = rows.div_ceil(ROWS) * sets * groups;
    let each = |put: &mut dyn FnMut(usize, usize, f32)| -> Result<(), CpuError> {
        for row in 0..rows {
            for set in 0..sets {
                for group in 0..groups {
                    let index = (row / ROWS * sets + set) * groups + group;
                    put(index, row % ROWS, value(set, row, group)?);
                }
            }
        }
        Ok(())
    };
    if halves {
        let mut all = Lines::zeroed(tiles)?;
        let places: &mut [[f16; ROWS]] = &mut all;
        // The values were f16, so this is exact.
        each(&mut |index, row, value| places[index][row] = f16::from_f32(value))?;
        return Ok(Shared::F16(all));
    }
    let mut all = Lines::zeroed(tiles)?;
    let places: &mut [[f32; ROWS]] = &mut all;
    each(&mut |index, row, value| places[index][row] = value)?;
    Ok(Shared::F32(all))
}

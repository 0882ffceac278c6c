//! Hypervectors on a device: resident batches, and searches on the cheaper of host and device.

use std::marker::PhantomData;

use trike_cube::vsa::{Decision, MAX_SEARCH_DIMS, TritOp};
use trike_cube::{CubeDevice, TritTable, ops};
use trike_popcount::TritPlanes;

use crate::algebra::{Algebra, AlgebraKind, Z3, cut};
use crate::bundle::Bundle;
use crate::error::{VsaError, check_dim, check_range};
use crate::memory::{Hit, ItemMemory};
use crate::random;
use crate::vector::PackedTritVec;

/// A batch of hypervectors in device memory. Every operation runs on the device, over the whole batch, and leaves its result there;
/// [`DeviceVectors::read`] copies it back. Results are bit-identical to those of the same functions on the host.
///
/// One operation on one vector takes tens of nanoseconds on the host and tens of microseconds on a device, most of it
/// launch and transfer latency: use batches of thousands. Vectors in host memory are best combined there, at memory bandwidth,
/// which exceeds that of the bus, so no operation copies a vector to the device only to combine it.
///
/// ```no_run
/// use trike_vsa::{DeviceVectors, PackedTritVec, Z3, cube::{CubeDevice, DeviceSpec}};
///
/// let device = CubeDevice::open(DeviceSpec::Auto)?;
/// let keys = DeviceVectors::upload(&device, &PackedTritVec::<Z3>::random_set(10_000, 500, 1)?)?;
/// let values = DeviceVectors::upload(&device, &PackedTritVec::random_set(10_000, 500, 2)?)?;
/// let record = keys.bind(&values)?.bundle(500)?.read()?;
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceVectors<A: Algebra = Z3> {
    device: CubeDevice,
    table: TritTable,
    algebra: PhantomData<A>,
}

impl<A: Algebra> DeviceVectors<A> {
    /// Copies vectors to a device.
    ///
    /// # Errors
    ///
    /// [`VsaError::Empty`] for no vectors, [`VsaError::Dimension`] if their dimensions differ, [`VsaError::Cube`] if the device
    /// cannot hold them, here and below.
    pub fn upload(device: &CubeDevice, vectors: &[PackedTritVec<A>]) -> Result<Self, VsaError> {
        let views: Vec<TritPlanes<'_>> = vectors.iter().map(PackedTritVec::view).collect();
        Self::from_views(device, &views)
    }

    fn from_views(device: &CubeDevice, views: &[TritPlanes<'_>]) -> Result<Self, VsaError> {
        let dim = views.first().ok_or(VsaError::Empty { what: "a batch of hypervectors" })?.len();
        views.iter().try_for_each(|view| check_dim("a vector of a batch", dim, view.len()))?;
        let rows = views.iter().map(|view| [view.pos(), view.neg()]);
        Ok(Self::over(device, TritTable::from_planes(device, dim, rows)?))
    }

    fn over(device: &CubeDevice, table: TritTable) -> Self {
        Self { device: device.clone(), table, algebra: PhantomData }
    }

    /// Storage for `count` vectors of the same dimensions.
    fn room(&self, count: usize) -> Result<Self, VsaError> {
        Ok(Self::over(&self.device, TritTable::empty(&self.device, count, self.dim())?))
    }

    /// Number of dimensions.
    pub fn dim(&self) -> usize {
        self.table.cols()
    }

    /// Number of vectors, at least one.
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    pub fn len(&self) -> usize {
        self.table.rows()
    }

    /// Copies the vectors to the host.
    ///
    /// # Errors
    ///
    /// [`VsaError::Cube`] if the device is lost.
    pub fn read(&self) -> Result<Vec<PackedTritVec<A>>, VsaError> {
        let planes = self.table.read_planes(&self.device)?;
        let vector =
            |[pos, neg]: [Vec<u64>; 2]| PackedTritVec::from_view(TritPlanes::new(&pos, &neg, self.dim())?);
        planes.into_iter().map(vector).collect()
    }

    /// [`bind`](crate::bind()) of each vector with the vector of `other` at the same index; a single vector is broadcast.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`] if the dimensions differ, [`VsaError::Cube`] if the number of vectors differs and is not one.
    pub fn bind(&self, other: &Self) -> Result<Self, VsaError> {
        self.combine(if A::KIND == AlgebraKind::Z3 { TritOp::SumMod3 } else { TritOp::Product }, other)
    }

    /// [`unbind`](crate::unbind) of each vector with the key at the same index; a single key is broadcast.
    ///
    /// # Errors
    ///
    /// As [`DeviceVectors::bind`].
    pub fn unbind(&self, key: &Self) -> Result<Self, VsaError> {
        self.combine(if A::KIND == AlgebraKind::Z3 { TritOp::DifferenceMod3 } else { TritOp::Product }, key)
    }

    fn combine(&self, op: TritOp, other: &Self) -> Result<Self, VsaError> {
        check_dim("the second batch of hypervectors", self.dim(), other.dim())?;
        let out = self.room(self.len())?;
        self.device.trit_combine(op, &self.table, &other.table, &out.table)?;
        Ok(out)
    }

    /// [`permute`](crate::permute()) of each vector.
    ///
    /// # Errors
    ///
    /// [`VsaError::Cube`].
    pub fn permute(&self, by: isize) -> Result<Self, VsaError> {
        let out = self.room(self.len())?;
        self.device.permute(&self.table, by, &out.table)?;
        Ok(out)
    }

    /// [`bundle_many`](crate::bundle_many) of each group of `each` consecutive vectors.
    ///
    /// # Errors
    ///
    /// [`VsaError::Cube`] if the number of vectors is not a multiple of `each`.
    pub fn bundle(&self, each: usize) -> Result<Self, VsaError> {
        self.bundled(each, None)
    }

    /// [`bundle_weighted`](crate::bundle_weighted) of each group of `each` consecutive vectors, with one weight per vector.
    ///
    /// # Errors
    ///
    /// As [`DeviceVectors::bundle`], and if the number of weights differs, or their sum exceeds `i32::MAX`.
    pub fn bundle_weighted(&self, each: usize, weights: &[u32]) -> Result<Self, VsaError> {
        self.bundled(each, Some(weights))
    }

    fn bundled(&self, each: usize, weights: Option<&[u32]>) -> Result<Self, VsaError> {
        let counts = self.device.bundle(&self.table, each, weights)?;
        let out = self.room(counts.bundles())?;
        let decide = |decision| self.device.decide(&counts, decision, &out.table);
        match A::KIND {
            AlgebraKind::Z3 => decide(Decision::Plurality)?,
            // An odd total weight of signs never sums to zero; for an even one, the host's random signs break ties.
            AlgebraKind::Bipolar => {
                let ties = random::ties(self.dim())?;
                let ties = Self::from_views(&self.device, &[ties.view()])?;
                decide(Decision::Signs(&ties.table))?;
            }
            AlgebraKind::Ternary => {
                // The threshold is that of the host, computed from the number of nonzeros.
                let nonzeros = self.device.nonzeros(&self.table)?;
                let cuts: Vec<u32> = (0..counts.bundles())
                    .map(|bundle| {
                        let rows = bundle * each..(bundle + 1) * each;
                        let weight = |row| weights.map_or(1, |weights: &[u32]| u64::from(weights[row]));
                        let all = rows.clone().map(|row| weight(row) * u64::from(nonzeros[row])).sum();
                        let squares = rows.map(|row| weight(row) * weight(row)).fold(0, u64::saturating_add);
                        cut(all, self.dim(), counts.totals()[bundle], squares)
                    })
                    .collect();
                decide(Decision::Majority(&cuts))?;
            }
        }
        Ok(out)
    }

    /// The counts of each group of `each` consecutive vectors, on the host, equal to those of [`Bundle::of`].
    ///
    /// # Errors
    ///
    /// As [`DeviceVectors::bundle`].
    pub fn bundle_counts(&self, each: usize) -> Result<Vec<Bundle<A>>, VsaError> {
        let counts = self.device.bundle(&self.table, each, None)?;
        let all = counts.read(&self.device)?.into_iter().zip(counts.totals());
        all.map(|([pos, neg], &total)| Bundle::from_counts(&pos, &neg, total, each as u64)).collect()
    }

    /// The score of each vector with each of `others`, row-major: matches in [`Z3`], dot products otherwise.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`].
    pub fn scores(&self, others: &Self) -> Result<Vec<i32>, VsaError> {
        check_dim("the other batch of hypervectors", self.dim(), others.dim())?;
        let out = self.device.empty::<i32>(self.len().saturating_mul(others.len()))?;
        let strategy = trike_cube::Strategy::Inferred;
        self.device.trit_scores(A::SCORE, &self.table, &others.table, &out, &strategy)?;
        Ok(self.device.read(&out)?)
    }
}

/// Placement of the searches of a [`DeviceMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SearchDevice {
    /// On the device above a threshold of compared trits; on the host below it, and for searches that the device does not support.
    #[default]
    Auto,
    /// On the host.
    Host,
    /// On the device.
    Device,
}

/// An [`ItemMemory`] with a copy on a device, where large searches run.
///
/// ```no_run
/// use trike_vsa::{DeviceMemory, ItemMemory, PackedTritVec, Z3, cube::{CubeDevice, DeviceSpec}};
///
/// let words = PackedTritVec::<Z3>::random_set(10_000, 100_000, 1)?;
/// let memory = DeviceMemory::new(ItemMemory::of(&words)?, &CubeDevice::open(DeviceSpec::Auto)?)?;
/// assert_eq!(memory.top_k_batch(&words[..64], 1)?[7][0].index, 7);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeviceMemory<A: Algebra = Z3> {
    host: ItemMemory<A>,
    vectors: DeviceVectors<A>,
    place: SearchDevice,
}

/// Minimum number of compared trits for which a search runs on the device: the host compares about 3e11 trits per second per
/// thread, and a launch with its read-back takes about 50 microseconds. An estimate, not a measurement.
const WORTHWHILE: u64 = 1 << 24;

impl<A: Algebra> DeviceMemory<A> {
    /// Copies a memory to a device.
    ///
    /// # Errors
    ///
    /// [`VsaError::Empty`] for a memory without vectors, [`VsaError::Cube`] if the device cannot hold it.
    pub fn new(host: ItemMemory<A>, device: &CubeDevice) -> Result<Self, VsaError> {
        let rows = (0..host.len()).map(|row| host.row(row)).collect::<Result<Vec<_>, VsaError>>()?;
        let vectors = DeviceVectors::from_views(device, &rows)?;
        Ok(Self { host, vectors, place: SearchDevice::Auto })
    }

    /// Sets the placement of searches.
    #[must_use]
    pub fn at(self, place: SearchDevice) -> Self {
        Self { place, ..self }
    }

    /// The memory on the host.
    pub fn host(&self) -> &ItemMemory<A> {
        &self.host
    }

    /// The vectors on the device.
    pub fn vectors(&self) -> &DeviceVectors<A> {
        &self.vectors
    }

    /// Whether a top-`k` search with this many queries runs on the device.
    pub fn is_on_device(&self, queries: usize, k: usize) -> bool {
        let fits = self.host.dim() <= MAX_SEARCH_DIMS && (1..=ops::MOST).contains(&k.min(self.host.len()));
        let compared = [queries, self.host.len(), self.host.dim()];
        let compared = compared.iter().fold(1u64, |all, &n| all.saturating_mul(n as u64));
        match self.place {
            SearchDevice::Host => false,
            SearchDevice::Device => true,
            // A software driver runs on the host, slower than the host kernels.
            SearchDevice::Auto => fits && compared >= WORTHWHILE && !self.vectors.device.is_software(),
        }
    }

    /// [`ItemMemory::top_k_batch`], on the host or the device; the hits are the same.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::top_k_batch`]; with [`SearchDevice::Device`], [`VsaError::Cube`] if `k` or the dimensions exceed the limits
    /// of the device search, or if it fails.
    pub fn top_k_batch(&self, queries: &[PackedTritVec<A>], k: usize) -> Result<Vec<Vec<Hit>>, VsaError> {
        check_range("k of a top-k search", 1, usize::MAX, k)?;
        queries.iter().try_for_each(|query| check_dim("a query", self.host.dim(), query.dim()))?;
        if queries.is_empty() || !self.is_on_device(queries.len(), k) {
            return self.host.top_k_batch(queries, k);
        }
        let device = &self.vectors.device;
        let batch = DeviceVectors::upload(device, queries)?;
        let k = k.min(self.host.len());
        let found = device.nearest(A::SCORE, &batch.table, &self.vectors.table, k)?;
        let hits = |(query, found): (&PackedTritVec<A>, Vec<trike_popcount::TritHit>)| {
            let hit = |found: trike_popcount::TritHit| {
                let row = self.host.row(found.row)?;
                let similarity = A::similarity(self.host.cpu(), found.score, query.view(), row);
                Ok(Hit { index: found.row, score: found.score.into(), similarity })
            };
            found.into_iter().map(hit).collect()
        };
        queries.iter().zip(found).map(hits).collect()
    }
}

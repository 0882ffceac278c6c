//! Random projections of real vectors.

use trike_popcount::{Cpu, PlaneMatrix, TritOps};

use crate::algebra::{Algebra, AlgebraKind, Ternary, Z3};
use crate::error::{VsaError, check_dim, check_range};
use crate::random::{bits, item_seed};
use crate::vector::{PackedTritVec, check_dims};

/// Maximum number of elements of a projection matrix, which is held in memory.
const MAX_TRITS: usize = 1 << 32;
/// Number of inputs below which directions are not trits: there are too few distinct ones.
const FEW: usize = 64;

/// Encodes real vectors as hypervectors by random projection; the similarity is a function of the angle between the inputs.
///
/// Every dimension projects the input on random directions, made of trits or, with fewer than 64 inputs, of approximately normal
/// numbers. [`Bipolar`](crate::Bipolar) keeps the sign, so that the similarity is `1 - 2 angle / pi`; [`Ternary`] keeps the sign
/// where the magnitude of the projection exceeds 0.612 standard deviations. [`Z3`] projects on two directions and keeps the third
/// of the circle in which the point lies. The norm of the input does not matter. Trits are too coarse for an input with only a
/// few nonzeros, which is better encoded as the bundle of its entries.
///
/// ```
/// use trike_vsa::{Bipolar, RandomProjection, similarity};
///
/// let projection = RandomProjection::<Bipolar>::new(3, 10_000, 1)?;
/// let (x, y) = (projection.encode(&[1.0, 0.0, 0.0])?, projection.encode(&[5.0, 5.0, 0.0])?);
/// assert!((similarity(&x, &y)? - 0.5).abs() < 0.1, "45 degrees");
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomProjection<A: Algebra = Z3> {
    directions: Directions,
    inputs: usize,
    cpu: Cpu,
    dim: usize,
    algebra: std::marker::PhantomData<A>,
}

/// The projection matrix: one row per direction.
#[derive(Clone, Debug)]
enum Directions {
    /// Approximately normal numbers, row-major.
    Normal(Vec<f32>),
    Trits(PlaneMatrix),
}

impl<A: Algebra> RandomProjection<A> {
    /// A projection of `inputs` numbers to `dim` dimensions, computed on the caller's thread. The directions depend on `seed` only.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for no inputs or dimensions, or for a matrix of more than 2^32 elements; [`VsaError::Popcount`] if
    /// an allocation fails, [`VsaError::Host`] if the host kernels cannot be initialized.
    pub fn new(inputs: usize, dim: usize, seed: u64) -> Result<Self, VsaError> {
        check_dims(dim)?;
        let rows = if A::KIND == AlgebraKind::Z3 { 2 * dim } else { dim };
        check_range("inputs of a projection", 1, MAX_TRITS / rows.min(MAX_TRITS), inputs)?;
        let seeds = (0..rows).map(|row| item_seed(seed, row as u64));
        let directions = if inputs < FEW {
            // The number of ones among 64 bits is binomial, close enough to normal.
            let number = |seed, input| bits(seed, input as u64, 0).count_ones() as f32 - 32.0;
            let row = |seed| (0..inputs).map(move |input| number(seed, input));
            Directions::Normal(seeds.flat_map(row).collect())
        } else {
            let mut matrix = PlaneMatrix::with_capacity(rows, inputs)?;
            for seed in seeds {
                matrix.push(PackedTritVec::<Ternary>::random(inputs, seed)?.view())?;
            }
            Directions::Trits(matrix)
        };
        Ok(Self { directions, inputs, cpu: Cpu::new(1)?, dim, algebra: std::marker::PhantomData })
    }

    /// The same projection, computed on the threads of a [`Cpu`].
    #[must_use]
    pub fn on(mut self, cpu: Cpu) -> Self {
        self.cpu = cpu;
        self
    }

    /// Length of an input.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Encodes an input.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`] for an input of another length, [`VsaError::Real`] for one with a number that is not finite.
    pub fn encode(&self, input: &[f32]) -> Result<PackedTritVec<A>, VsaError> {
        check_dim("inputs of a projection", self.inputs(), input.len())?;
        if let Some(&got) = input.iter().find(|x| !x.is_finite()) {
            let (minimum, maximum) = (f32::MIN.into(), f32::MAX.into());
            return Err(VsaError::Real {
                what: "an input of a projection",
                minimum,
                maximum,
                got: got.into(),
            });
        }
        // Scaled, so that no sum overflows.
        let largest = input.iter().fold(0f32, |most, x| most.max(x.abs())).max(f32::MIN_POSITIVE);
        let input: Vec<f32> = input.iter().map(|x| x / largest).collect();
        let seen: Vec<f32> = match &self.directions {
            Directions::Normal(numbers) => {
                numbers.chunks_exact(self.inputs).map(|row| dot(row, &input)).collect()
            }
            Directions::Trits(matrix) => {
                let mut seen = vec![0.0; matrix.rows()];
                self.cpu.trit_project(matrix, &input, &mut seen)?;
                seen
            }
        };
        let squares: f32 = seen.iter().map(|x| x * x).sum();
        let cut = match A::KIND {
            AlgebraKind::Ternary => 0.612 * (squares / seen.len() as f32).sqrt(),
            _ => 0.0,
        };
        let trits: Vec<i8> = if A::KIND == AlgebraKind::Z3 {
            let (across, along) = seen.split_at(self.dim);
            across.iter().zip(along).map(|(&x, &y)| third(x, y)).collect()
        } else {
            // A projection of exactly 0 is rare; it maps to 1 in the algebra without zeros.
            seen.iter()
                .map(|&x| {
                    if x.abs() < cut {
                        0
                    } else if x < 0.0 {
                        -1
                    } else {
                        1
                    }
                })
                .collect()
        };
        PackedTritVec::from_trits(&trits)
    }
}

/// The dot product of two short rows.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

/// The third of the circle that contains a point: 0 around the positive x axis, then 1 and -1 counter-clockwise.
fn third(x: f32, y: f32) -> i8 {
    let edge = 3f32.sqrt() * x;
    if y.abs() <= edge {
        0
    } else if y >= 0.0 {
        1
    } else {
        -1
    }
}

//! The fast components of the momentum.

use crate::codec::sparse::{CHUNK as GROUP, Geometric, Scratch, Sparse};
use crate::codec::{
    Carry, Codec, MessageCodec, Saved, check_decay, check_gradient, check_len, exchange_messages,
};
use crate::{CommError, Communicator};

/// Length of a cosine transform.
const CHUNK: usize = 64;
const HALF: usize = CHUNK / 2;

/// Decoupled momentum (DeMo, Peng et al., 2411.19870): sends the largest cosine coefficients of the momentum, in 16 bits each.
///
/// With `momentum = decay momentum + gradient`, every 64 elements of the momentum are transformed by the orthonormal DCT-II. Of
/// every 4,096 coefficients the largest are sent, and their contribution is subtracted from the momentum. A coefficient is
/// quantized to eight magnitudes, from the largest of its 4,096 down to 0.09 of it.
///
/// The paper sends equally many coefficients of every chunk. Here 64 chunks share a budget, so a chunk of small gradients leaves
/// its part to the rest. The transform is one-dimensional: 32 multiplications per element, where 64 x 64 chunks take twice as many
/// and shapes that are multiples of 64. Trailing elements that do not fill a chunk are sent untransformed.
#[derive(Clone, Debug)]
pub struct Demo {
    sparse: Sparse<Geometric>,
    decay: f32,
    momentum: Vec<f32>,
    cosines: Box<Cosines>,
}

impl Demo {
    /// A codec for gradients of `len` elements that sends a fraction `share` of their coefficients, in (0, 1]. `momentum`, in [0,
    /// 1], is the momentum factor per step; with 1 nothing is lost.
    ///
    /// # Errors
    ///
    /// [`CommError::Range`].
    pub fn new(len: usize, share: f32, momentum: f32) -> Result<Self, CommError> {
        check_decay("momentum", momentum)?;
        Ok(Self {
            sparse: Sparse::new(share)?,
            decay: momentum,
            momentum: vec![0.0; len],
            cosines: Box::new(Cosines::new()),
        })
    }
}

impl Codec for Demo {
    fn len(&self) -> usize {
        self.momentum.len()
    }

    fn sent_bytes(&self, _rank: usize, ranks: usize) -> usize {
        ranks.saturating_sub(1) * self.bytes()
    }

    fn check(&self, rank: usize, gradient: &[f32]) -> Result<(), CommError> {
        let states = self.momentum.iter().zip(gradient).map(|(m, g)| self.decay * *m + g);
        check_gradient(rank, self.len(), gradient, states)
    }

    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError> {
        exchange_messages(self, comm, gradient)
    }

    fn state(&self) -> Vec<Saved<'_>> {
        vec![Saved { name: "momentum", carry: Carry::Mean, values: &self.momentum }]
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        vec![&mut self.momentum]
    }
}

impl MessageCodec for Demo {
    fn bytes(&self) -> usize {
        self.sparse.bytes(self.len())
    }

    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError> {
        self.check(0, gradient)?;
        let mut message = Vec::with_capacity(self.bytes());
        let mut scratch = Scratch::default();
        let mut coefficients = Vec::with_capacity(GROUP);
        for (momentum, gradient) in self.momentum.chunks_mut(GROUP).zip(gradient.chunks(GROUP)) {
            momentum.iter_mut().zip(gradient).for_each(|(m, g)| *m = self.decay * *m + g);
            coefficients.clear();
            let (chunks, rest) = momentum.as_chunks::<CHUNK>();
            for chunk in chunks {
                coefficients.extend(self.cosines.transform(chunk));
            }
            coefficients.extend_from_slice(rest);
            self.sparse.write(&coefficients, &mut message, &mut scratch);
            for (place, value) in &scratch.sent {
                self.cosines.add(*place, -value, momentum);
            }
        }
        Ok(message)
    }

    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        check_len("sum", self.len(), sum.len())?;
        self.sparse.read(rank, message, sum.len(), |place, value| {
            self.cosines.add(place, weight * value, sum);
        })
    }
}

/// The orthonormal DCT-II of 64 elements: row `k` of the matrix is `c cos(pi (2 n + 1) k / 128)`, with `c` = sqrt(1 / 64) for `k` =
/// 0, else sqrt(2 / 64).
#[derive(Clone, Debug)]
struct Cosines {
    rows: [[f32; CHUNK]; CHUNK],
    /// The left halves of the even rows, transposed; the right halves are their mirror images.
    even: [[f32; HALF]; HALF],
    /// The left halves of the odd rows, transposed; the right halves are their negated mirror images.
    odd: [[f32; HALF]; HALF],
}

impl Cosines {
    fn new() -> Self {
        let quarter = quarter();
        // `cos(pi j / 128)`, by symmetry.
        let cosine = |j: usize| match j % (4 * CHUNK) {
            j if j <= CHUNK => quarter[j],
            j if j <= 2 * CHUNK => -quarter[2 * CHUNK - j],
            j if j <= 3 * CHUNK => -quarter[j - 2 * CHUNK],
            j => quarter[4 * CHUNK - j],
        };
        let mut cosines =
            Self { rows: [[0.0; CHUNK]; CHUNK], even: [[0.0; HALF]; HALF], odd: [[0.0; HALF]; HALF] };
        for (k, row) in cosines.rows.iter_mut().enumerate() {
            let norm = (if k == 0 { 1.0 } else { 2.0 } / CHUNK as f64).sqrt();
            for (n, x) in row.iter_mut().enumerate() {
                *x = (norm * cosine((2 * n + 1) * k)) as f32;
            }
        }
        for n in 0..HALF {
            for k in 0..HALF {
                cosines.even[n][k] = cosines.rows[2 * k][n];
                cosines.odd[n][k] = cosines.rows[2 * k + 1][n];
            }
        }
        cosines
    }

    fn transform(&self, x: &[f32; CHUNK]) -> [f32; CHUNK] {
        let (mut even, mut odd) = ([0f32; HALF], [0f32; HALF]);
        for n in 0..HALF {
            let (sum, difference) = (x[n] + x[CHUNK - 1 - n], x[n] - x[CHUNK - 1 - n]);
            for k in 0..HALF {
                even[k] += sum * self.even[n][k];
                odd[k] += difference * self.odd[n][k];
            }
        }
        std::array::from_fn(|k| if k % 2 == 0 { even[k / 2] } else { odd[k / 2] })
    }

    /// Adds the inverse transform of the coefficient at index `place` to `sum`.
    fn add(&self, place: usize, value: f32, sum: &mut [f32]) {
        let (chunks, rest) = sum.as_chunks_mut::<CHUNK>();
        match chunks.get_mut(place / CHUNK) {
            Some(chunk) => {
                chunk.iter_mut().zip(&self.rows[place % CHUNK]).for_each(|(sum, x)| *sum += value * x);
            }
            None => rest[place % CHUNK] += value,
        }
    }
}

/// The cosines of `pi j / 128` for `j` of 0 to 64.
///
/// Computed with square roots and divisions only, which IEEE 754 rounds exactly. The cosine of a system's math library may differ
/// in its last bit, and ranks on different systems would end up with different weights.
fn quarter() -> [f64; CHUNK + 1] {
    let mut cosines = [0.0; CHUNK + 1];
    cosines[0] = 1.0;
    // The cosine of the distance between the known points.
    let (mut step, mut distance) = (CHUNK, 0f64);
    while step > 1 {
        // cos a + cos b = 2 cos((a + b) / 2) cos((a - b) / 2).
        distance = ((1.0 + distance) / 2.0).sqrt();
        for j in (step / 2..CHUNK).step_by(step) {
            cosines[j] = (cosines[j - step / 2] + cosines[j + step / 2]) / (2.0 * distance);
        }
        step /= 2;
    }
    cosines
}

#[cfg(test)]
mod tests {
    use trike_testkit::{Rng, assert_all_near, assert_near};

    use super::*;

    #[test]
    fn the_transform_is_the_orthonormal_dct() {
        let cosines = Cosines::new();
        let x: [f32; CHUNK] = Rng::new(1).normals(CHUNK).try_into().expect("64 elements");
        let got = cosines.transform(&x);
        let mut back = [0.0; CHUNK + 3];
        for (k, got) in got.iter().enumerate() {
            let terms = x.iter().enumerate().map(|(n, x)| {
                let angle = std::f64::consts::PI * ((2 * n + 1) * k) as f64 / 128.0;
                f64::from(*x) * angle.cos()
            });
            let norm = if k == 0 { 1.0f64 / 64.0 } else { 2.0 / 64.0 }.sqrt();
            assert_near!(f64::from(*got), norm * terms.sum::<f64>(), abs = 1e-5, "coefficient {k}");
            cosines.add(k, *got, &mut back);
        }
        assert_all_near!(&back[..CHUNK], &x, abs = 1e-5);
        cosines.add(CHUNK + 2, 7.0, &mut back);
        assert_eq!(back[CHUNK..], [0.0, 0.0, 7.0]);
    }
}

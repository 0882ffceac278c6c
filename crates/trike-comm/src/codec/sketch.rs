//! Hashed sums of elements.

use crate::codec::{Carry, Codec, MessageCodec, Saved, check_bytes, check_gradient, check_len, check_share};
use crate::codec::{chunked, count, mix, number, sums};
use crate::{CommError, Communicator};

/// Elements per group of buckets; a chunk and its buckets stay in the L1 cache.
const CHUNK: usize = 4096;
/// Bytes of the step number at the start of a message.
const HEADER: usize = 4;
/// The sign bit of a hash; the lower bits are the bucket.
const SIGN: u16 = 1 << 15;

/// A count sketch (Charikar et al., 2002): the hypervector of a gradient without a projection matrix.
///
/// With `residual += gradient`, each element of a chunk is added, with a random sign, to one of its `b` buckets at random. Bucket
/// and sign are hashes of the index and the step, so only the sums are stored or sent. Sketches are linear: all ranks add their
/// buckets and decode once. An element is decoded as `a` times its bucket, with its sign; each rank subtracts the decoded values of
/// its own sketch from its residual.
///
/// The bucket is the element plus noise from the other elements of the bucket. For `n` elements `x`, decoded as `d`, over all
/// hashes `E |x - d|^2 = (1 - 2 a + a^2 (1 + (n - 1) / b)) |x|^2`. The minimum is at `a = b / (b + n - 1)`, where it is `(1 - a)
/// |x|^2`: less than `|x|^2`, so the residual is bounded (Karimireddy et al., 1901.09847), while `a` = 1 adds noise of `n / b`
/// times the signal and diverges. Hashes change in each step, so no two elements collide every time.
///
/// A gradient arrives over about `n / b` steps and with noise: at the same size, the direction of a step is worse than with
/// [`TopK`](crate::codec::TopK). It is meant for networks that can add messages.
#[doc(alias = "VSA")]
#[derive(Clone, Debug)]
pub struct Sketch {
    share: f32,
    residual: Vec<f32>,
    /// The low and the high 16 bits of the step, since codec state is f32.
    step: [f32; 2],
}

impl Sketch {
    /// A codec for gradients of `len` elements with `share` buckets per element, in (0, 1].
    ///
    /// # Errors
    ///
    /// [`CommError::Range`].
    pub fn new(len: usize, share: f32) -> Result<Self, CommError> {
        check_share(share)?;
        Ok(Self { share, residual: vec![0.0; len], step: [0.0; 2] })
    }

    fn step(&self) -> u32 {
        let [low, high] = self.step.map(|half| u32::from(half as u16));
        low | high << 16
    }

    fn next_step(&mut self) {
        let step = self.step().wrapping_add(1);
        self.step = [(step & 0xffff) as f32, (step >> 16) as f32];
    }

    /// Buckets of all chunks.
    fn buckets(&self) -> usize {
        chunked(self.residual.len(), CHUNK, |len| count(self.share, len))
    }

    /// Adds `weight` times the decoded buckets of a step.
    fn decode(&self, step: u32, buckets: &[f32], weight: f32, sum: &mut [f32]) {
        let mut hashes = [0; CHUNK];
        let mut rest = buckets;
        for (chunk, sum) in sum.chunks_mut(CHUNK).enumerate() {
            let (buckets, after) = rest.split_at(count(self.share, sum.len()));
            rest = after;
            hash(step, chunk, buckets.len(), &mut hashes[..sum.len()]);
            take(&hashes, buckets, weight * factor(buckets.len(), sum.len()), sum);
        }
    }
}

/// The bucket and the sign of each element of a chunk.
fn hash(step: u32, chunk: usize, buckets: usize, hashes: &mut [u16]) {
    let seed = mix(mix(step) ^ chunk as u32);
    for (place, hash) in (0u32..).zip(hashes) {
        // Indices are multiplied by an odd number near 2^32 / golden ratio, so that seeds do not shift the hashes.
        let bits = mix(place.wrapping_mul(0x9e37_79b9).wrapping_add(seed));
        // 16 bits for the bucket, of at most 4,096, and an independent bit for the sign.
        let bucket = ((bits >> 16) * buckets as u32) >> 16;
        *hash = bucket as u16 | ((bits & 1) as u16 * SIGN);
    }
}

/// The value with the sign of the hash.
#[inline(always)]
fn signed(x: f32, hash: u16) -> f32 {
    f32::from_bits(x.to_bits() ^ u32::from(hash & SIGN) << 16)
}

fn factor(buckets: usize, elements: usize) -> f32 {
    buckets as f32 / (buckets + elements - 1) as f32
}

/// Adds `weight` times the decoded elements.
fn take(hashes: &[u16], buckets: &[f32], weight: f32, sum: &mut [f32]) {
    for (sum, hash) in sum.iter_mut().zip(hashes) {
        *sum += weight * signed(buckets[usize::from(hash & !SIGN)], *hash);
    }
}

impl Codec for Sketch {
    fn len(&self) -> usize {
        self.residual.len()
    }

    fn sent_bytes(&self, rank: usize, ranks: usize) -> usize {
        HEADER * ranks.saturating_sub(1) + crate::sum::mean_bytes(self.buckets(), rank, ranks)
    }

    fn check(&self, rank: usize, gradient: &[f32]) -> Result<(), CommError> {
        check_gradient(rank, self.len(), gradient, sums(&self.residual, gradient))
    }

    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError> {
        let step = self.step();
        let message = self.encode(gradient).map_err(|error| error.of_rank(comm.rank()))?;
        let (header, buckets) = message.split_at(HEADER);
        for (rank, theirs) in comm.all_gather(header, HEADER)?.iter().enumerate() {
            check_bytes(rank, HEADER, theirs.len())?;
            if theirs != header {
                return Err(CommError::Damaged { rank, problem: "a sketch of another step" });
            }
        }
        let mut buckets = crate::sum::floats(buckets);
        crate::mean(comm, &mut buckets)?;
        gradient.fill(0.0);
        self.decode(step, &buckets, 1.0, gradient);
        Ok(())
    }

    fn state(&self) -> Vec<Saved<'_>> {
        vec![
            Saved { name: "residual", carry: Carry::Mean, values: &self.residual },
            Saved { name: "step", carry: Carry::Same, values: &self.step },
        ]
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        vec![&mut self.residual, &mut self.step]
    }
}

impl MessageCodec for Sketch {
    fn bytes(&self) -> usize {
        HEADER + 4 * self.buckets()
    }

    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError> {
        self.check(0, gradient)?;
        let step = self.step();
        let mut message = Vec::with_capacity(self.bytes());
        message.extend(step.to_le_bytes());
        let mut hashes = [0; CHUNK];
        let mut buckets = [0f32; CHUNK];
        let chunks = self.residual.chunks_mut(CHUNK).zip(gradient.chunks(CHUNK));
        for (chunk, (residual, gradient)) in chunks.enumerate() {
            residual.iter_mut().zip(gradient).for_each(|(r, g)| *r += g);
            let buckets = &mut buckets[..count(self.share, residual.len())];
            buckets.fill(0.0);
            hash(step, chunk, buckets.len(), &mut hashes[..residual.len()]);
            for (x, hash) in residual.iter().zip(&hashes) {
                buckets[usize::from(hash & !SIGN)] += signed(*x, *hash);
            }
            let own = factor(buckets.len(), residual.len());
            take(&hashes, buckets, -own, residual);
            crate::sum::append(&mut message, buckets);
        }
        self.next_step();
        Ok(message)
    }

    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        check_len("sum", self.len(), sum.len())?;
        check_bytes(rank, self.bytes(), message.len())?;
        let (header, buckets) = message.split_at(HEADER);
        let step = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let buckets: Result<Vec<f32>, CommError> =
            buckets.chunks_exact(4).map(|bytes| number(rank, bytes)).collect();
        self.decode(step, &buckets?, weight, sum);
        Ok(())
    }
}

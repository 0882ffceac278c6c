//! The largest elements of gradients.

use crate::CommError;
use crate::codec::{Codec, check_bytes, check_len, scale};

/// Elements of a chunk, from each of which as many are sent: a place takes 12 bits.
const CHUNK: usize = 4096;
/// Magnitudes, each `1 / sqrt(2)` of the one before.
const LEVELS: [f32; 8] = [1.0, 0.707_106_77, 0.5, 0.353_553_38, 0.25, 0.176_776_69, 0.125, 0.088_388_346];

/// The largest elements, with momentum (Lin et al., 1712.01887): of each 4,096, a share, in 16 bits each.
///
/// A rank adds up its gradients as `velocity = momentum velocity + gradient` and `waiting += velocity`. What is sent of `waiting` is
/// taken away from it, and the velocity of what is sent is cleared, so that old gradients do not push on. A value is one of eight
/// magnitudes, from that of the largest of its chunk down to 0.09 of it.
#[derive(Clone, Debug)]
pub struct TopK {
    share: f32,
    momentum: f32,
    velocity: Vec<f32>,
    waiting: Vec<f32>,
}

impl TopK {
    /// A codec for gradients of `len` elements that sends the `share` of them, 0 to 1; a `momentum` of 0 sends what has waited only.
    ///
    /// # Errors
    ///
    /// [`CommError::Range`].
    pub fn new(len: usize, share: f32, momentum: f32) -> Result<Self, CommError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(CommError::Range {
                what: "share",
                expected: "over 0 up to 1",
                got: f64::from(share),
            });
        }
        if !(0.0..1.0).contains(&momentum) {
            let got = f64::from(momentum);
            return Err(CommError::Range { what: "momentum", expected: "0 to less than 1", got });
        }
        let velocity = if momentum > 0.0 { vec![0.0; len] } else { Vec::new() };
        Ok(Self { share, momentum, velocity, waiting: vec![0.0; len] })
    }

    /// Elements that are sent of a chunk of `len`.
    fn count(&self, len: usize) -> usize {
        ((self.share * len as f32).round() as usize).clamp(1, len)
    }
}

/// The level whose magnitude is nearest as a ratio.
fn level(value: f32, most: f32) -> usize {
    // Between two levels, the geometric mean: 2^(-1/4) of the upper one.
    const BORDER: f32 = 0.840_896_4;
    LEVELS[..7].iter().take_while(|level| value < most * *level * BORDER).count()
}

fn decoded(most: f32, level: usize, sign: u16) -> f32 {
    let magnitude = most * LEVELS[level & 7];
    if sign == 1 { -magnitude } else { magnitude }
}

impl Codec for TopK {
    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn bytes(&self) -> usize {
        let of = |len: usize| if len > 0 { 4 + 2 * self.count(len) } else { 0 };
        (self.len() / CHUNK) * of(CHUNK) + of(self.len() % CHUNK)
    }

    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError> {
        check_len("gradient", self.len(), gradient.len())?;
        if self.momentum > 0.0 {
            for ((velocity, waiting), g) in self.velocity.iter_mut().zip(&mut self.waiting).zip(gradient) {
                *velocity = self.momentum * *velocity + g;
                *waiting += *velocity;
            }
        } else {
            self.waiting.iter_mut().zip(gradient).for_each(|(waiting, g)| *waiting += g);
        }
        let mut message = Vec::with_capacity(self.bytes());
        let mut order: Vec<u16> = Vec::with_capacity(CHUNK);
        let counts: Vec<usize> = self.waiting.chunks(CHUNK).map(|chunk| self.count(chunk.len())).collect();
        for ((chunk, waiting), count) in self.waiting.chunks_mut(CHUNK).enumerate().zip(counts) {
            // Magnitudes are ordered as their bits are; of equal ones, the first.
            let key = |place: &u16| (!waiting[usize::from(*place)].abs().to_bits(), *place);
            order.clear();
            order.extend(0..waiting.len() as u16);
            if count < order.len() {
                order.select_nth_unstable_by_key(count - 1, key);
                order.truncate(count);
            }
            order.sort_unstable();
            let most = order.iter().fold(0f32, |most, place| most.max(waiting[usize::from(*place)].abs()));
            message.extend(most.to_le_bytes());
            for place in &order {
                let value = &mut waiting[usize::from(*place)];
                // No level is zero: what is sent in place of a zero waits with the opposite sign.
                let level = level(value.abs(), most);
                let sign = u16::from(value.is_sign_negative());
                message.extend((place << 4 | level as u16 | sign << 3).to_le_bytes());
                *value -= decoded(most, level, sign);
                if let Some(velocity) = self.velocity.get_mut(CHUNK * chunk + usize::from(*place)) {
                    *velocity = 0.0;
                }
            }
        }
        Ok(message)
    }

    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        check_len("sum", self.len(), sum.len())?;
        check_bytes(rank, self.bytes(), message.len())?;
        let mut rest = message;
        for sum in sum.chunks_mut(CHUNK) {
            let (header, after) = rest.split_at(4);
            let (entries, after) = after.split_at(2 * self.count(sum.len()));
            rest = after;
            let most = scale(rank, header)?;
            for entry in entries.chunks_exact(2) {
                let entry = u16::from_le_bytes([entry[0], entry[1]]);
                let Some(sum) = sum.get_mut(usize::from(entry >> 4)) else {
                    return Err(CommError::Damaged { rank, problem: "a place behind the last element" });
                };
                *sum += weight * decoded(most, usize::from(entry & 7), entry >> 3 & 1);
            }
        }
        Ok(())
    }

    fn state(&self) -> Vec<&[f32]> {
        vec![&self.velocity, &self.waiting]
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        vec![&mut self.velocity, &mut self.waiting]
    }
}

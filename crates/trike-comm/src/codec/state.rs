//! The state of codecs, for runs that stop and resume.

use crate::CommError;
use crate::codec::{Codec, check_len};

/// How a vector of a codec's state is converted to another number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// Pending updates of the mean over the ranks, such as a residual: each rank gets the mean over the old ranks.
    ///
    /// An exchange computes a mean, so the mean of the ranks' vectors is the update that the weights have yet to receive, and it is
    /// preserved.
    Mean,
    /// Identical on all ranks, such as the factors that [`LowRank`](crate::codec::LowRank) starts from: each rank gets a copy.
    Same,
}

/// A vector of a codec's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved<'a> {
    /// Its name, unique within the codec.
    pub name: &'static str,
    /// How it is converted to another number of ranks.
    pub carry: Carry,
    /// Its elements.
    pub values: &'a [f32],
}

impl Carry {
    /// The vector of rank `rank` of `ranks`, from those of all old ranks in order.
    ///
    /// With an unchanged number of ranks, a rank gets its own vector back, bit-identically. Means are computed in f64.
    ///
    /// # Errors
    ///
    /// [`CommError::Rank`] for a rank that does not exist, [`CommError::Length`] for no vectors or vectors of different lengths,
    /// [`CommError::Differs`] for [`Carry::Same`] and vectors that differ.
    ///
    /// ```
    /// use trike_comm::codec::Carry;
    ///
    /// // Two ranks owe 1 and 2 to the mean, which is 1.5; so do three ranks that hold 1.5 each.
    /// assert_eq!(Carry::Mean.over(&[&[1.0], &[2.0]], 2, 3)?, [1.5]);
    /// // Back on two ranks, each has its original state.
    /// assert_eq!(Carry::Mean.over(&[&[1.0], &[2.0]], 1, 2)?, [2.0]);
    /// # Ok::<(), trike_comm::CommError>(())
    /// ```
    pub fn over(self, old: &[&[f32]], rank: usize, ranks: usize) -> Result<Vec<f32>, CommError> {
        if rank >= ranks {
            return Err(CommError::Rank { rank, size: ranks });
        }
        let Some(first) = old.first() else {
            return Err(CommError::Length { what: "list of old ranks", expected: ranks, got: 0 });
        };
        for vector in old {
            check_len("state of an old rank", first.len(), vector.len())?;
        }
        match self {
            Self::Mean if old.len() == ranks => Ok(old[rank].to_vec()),
            Self::Mean => {
                let mut sum = vec![0f64; first.len()];
                for vector in old {
                    sum.iter_mut().zip(*vector).for_each(|(sum, x)| *sum += f64::from(*x));
                }
                Ok(sum.iter().map(|sum| (sum / old.len() as f64) as f32).collect())
            }
            Self::Same => {
                for (rank, vector) in old.iter().enumerate() {
                    let pairs = first.iter().zip(*vector);
                    if let Some((a, b)) = pairs.into_iter().find(|(a, b)| a.to_bits() != b.to_bits()) {
                        return Err(CommError::Differs {
                            what: "state that is the same on all ranks".to_owned(),
                            rank,
                            first: a.to_string(),
                            theirs: b.to_string(),
                        });
                    }
                }
                Ok(first.to_vec())
            }
        }
    }
}

/// Restores the state of a codec of rank `rank` of `ranks` from the states of all old ranks.
///
/// `old` has, for each old rank in order, the vectors of [`Codec::state`] in order. If the states of all ranks do not fit in
/// memory, call [`Carry::over`] for one vector after another.
///
/// # Errors
///
/// Errors of [`Carry::over`], and [`CommError::Length`] for vectors of another codec; the state is then unchanged.
///
/// ```
/// use trike_comm::codec::{Codec, MessageCodec, TernaryCodec, restore};
///
/// let mut old = TernaryCodec::new(3);
/// old.encode(&[1.0, 2.0, -4.0])?;
/// let saved: Vec<Vec<f32>> = old.state().iter().map(|vector| vector.values.to_vec()).collect();
/// let mut new = TernaryCodec::new(3);
/// restore(&mut new, &[saved], 0, 1)?;
/// assert_eq!(new.state(), old.state());
/// # Ok::<(), trike_comm::CommError>(())
/// ```
pub fn restore<V: AsRef<[f32]>>(
    codec: &mut dyn Codec,
    old: &[impl AsRef<[V]>],
    rank: usize,
    ranks: usize,
) -> Result<(), CommError> {
    let mut carried = Vec::new();
    let vectors = codec.state();
    for ranks in old {
        check_len("list of state vectors", vectors.len(), ranks.as_ref().len())?;
    }
    for (number, vector) in vectors.iter().enumerate() {
        let of_ranks: Vec<&[f32]> = old.iter().map(|rank| rank.as_ref()[number].as_ref()).collect();
        let new = vector.carry.over(&of_ranks, rank, ranks)?;
        check_len(vector.name, vector.values.len(), new.len())?;
        carried.push(new);
    }
    for (to, from) in codec.state_mut().into_iter().zip(&carried) {
        to.copy_from_slice(from);
    }
    Ok(())
}

//! Numbers that one rank gives to another.

use crate::sum::{PIECE, append, floats};
use crate::{CommError, Communicator};

/// Sends numbers to another rank, which calls [`receive_floats`].
///
/// # Errors
///
/// As [`Communicator::send`].
///
/// ```
/// use trike_comm::{Communicator, Threads, receive_floats, send_floats};
///
/// let [one, two] = &Threads::new(2)[..] else { unreachable!("two ranks") };
/// send_floats(one, 1, &[1.0, -2.5])?;
/// assert_eq!(receive_floats(two, 0, 2)?, [1.0, -2.5]);
/// # Ok::<(), trike_comm::CommError>(())
/// ```
pub fn send_floats<C: Communicator + ?Sized>(comm: &C, to: usize, values: &[f32]) -> Result<(), CommError> {
    for piece in values.chunks(PIECE) {
        let mut message = Vec::new();
        append(&mut message, piece);
        comm.send(to, &message)?;
    }
    Ok(())
}

/// The next `len` numbers of another rank.
///
/// # Errors
///
/// [`CommError::Cut`] for fewer numbers than that, and as [`Communicator::receive`].
pub fn receive_floats<C: Communicator + ?Sized>(
    comm: &C,
    from: usize,
    len: usize,
) -> Result<Vec<f32>, CommError> {
    let mut all = Vec::new();
    while all.len() < len {
        let expected = 4 * PIECE.min(len - all.len());
        let message = comm.receive(from, expected)?;
        if message.len() != expected {
            return Err(CommError::Cut { rank: from, expected, got: message.len() });
        }
        all.extend(floats(&message));
    }
    Ok(all)
}

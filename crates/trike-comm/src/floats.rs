//! Exchanges of f32 values between ranks.

use crate::sum::{PIECE, append, floats};
use crate::{CommError, Communicator};

/// Sends values to another rank, which calls [`receive_floats`].
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

/// Receives the next `len` values of another rank.
///
/// # Errors
///
/// [`CommError::Cut`] for fewer values, and as [`Communicator::receive`].
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

/// Sends `parts[i]` to rank `i` and returns the values from all ranks to this one, in rank order; `lens` are their lengths.
///
/// # Errors
///
/// [`CommError::Length`] unless there is one part and one length per rank, [`CommError::Cut`] for a part of another length, and as
/// [`Communicator::receive`].
///
/// ```
/// use trike_comm::{Communicator, Threads, exchange_floats};
///
/// let all = Threads::run(2, |comm| {
///     let rank = comm.rank() as f32;
///     exchange_floats(&comm, &[vec![rank], vec![rank + 10.0; 2]], &[comm.rank() + 1; 2])
/// });
/// assert_eq!(all[1], Ok(vec![vec![10.0; 2], vec![11.0; 2]]));
/// ```
pub fn exchange_floats<C: Communicator + ?Sized>(
    comm: &C,
    parts: &[Vec<f32>],
    lens: &[usize],
) -> Result<Vec<Vec<f32>>, CommError> {
    for (what, got) in [("parts for the ranks", parts.len()), ("lengths of their parts", lens.len())] {
        if got != comm.size() {
            return Err(CommError::Length { what, expected: comm.size(), got });
        }
    }
    let (rank, size) = (comm.rank(), comm.size());
    // Starting with the next rank, so that not all ranks send to the same one first.
    for to in (1..size).map(|step| (rank + step) % size) {
        send_floats(comm, to, &parts[to])?;
    }
    let receive = |from: usize| match from == rank {
        true if parts[rank].len() != lens[rank] => {
            Err(CommError::Length { what: "part of this rank", expected: lens[rank], got: parts[rank].len() })
        }
        true => Ok(parts[rank].clone()),
        false => receive_floats(comm, from, lens[from]),
    };
    (0..size).map(receive).collect()
}

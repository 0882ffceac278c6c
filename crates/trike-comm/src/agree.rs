//! Checks that ranks were started with the same settings.

use crate::{CommError, Communicator};

/// Maximum length of a setting's text, in bytes.
const MOST: usize = 1 << 20;

/// Checks that all ranks have the same text for `what`, such as a version, a model's fingerprint or a configuration.
///
/// # Errors
///
/// [`CommError::Differs`] on every rank, naming the first rank that differs from rank 0, and errors of messages.
///
/// ```
/// use trike_comm::{Communicator, Threads, agree};
///
/// let errors = Threads::run(3, |comm| {
///     let seed = ["seed 1", "seed 1", "seed 2"][comm.rank()];
///     agree(&comm, "configuration", seed)
/// });
/// for error in errors {
///     let text = error.expect_err("they differ").to_string();
///     assert_eq!(text, "ranks 2 and 0 differ in configuration: seed 2 and seed 1");
/// }
/// ```
pub fn agree<C: Communicator + ?Sized>(comm: &C, what: &str, text: &str) -> Result<(), CommError> {
    let all = comm.all_gather(text.as_bytes(), MOST)?;
    let Some(rank) = all.iter().position(|other| *other != all[0]) else { return Ok(()) };
    let text = |of: usize| String::from_utf8_lossy(&all[of]).into_owned();
    Err(CommError::Differs { what: what.to_owned(), rank, first: text(0), theirs: text(rank) })
}

//! The executor of host kernels.

use crate::error::HostError;
use crate::isa::Isa;
use crate::pool::Pool;

/// The executor of every host kernel: an instruction set and a pool of threads.
///
/// It is stateless between calls, so many models may share one `Cpu`; a clone shares the threads. The traits of the kernel crates
/// add the operations.
///
/// ```
/// use trike_host::{Cpu, Isa};
///
/// let cpu = Cpu::new(2)?;
/// assert_eq!(cpu.threads(), 2);
/// assert_eq!(cpu.isa(), Isa::detect());
/// # Ok::<(), trike_host::HostError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cpu {
    isa: Isa,
    pool: Pool,
}

impl Cpu {
    /// The best instruction set of this machine with this many threads; 0 = one per physical core, see [`Pool::new`].
    ///
    /// # Errors
    ///
    /// [`HostError::TooManyThreads`] above [`MAX_THREADS`](crate::MAX_THREADS), [`HostError::Threads`] if the operating system
    /// cannot start the threads.
    pub fn new(threads: usize) -> Result<Self, HostError> {
        Self::with_isa(Isa::detect(), threads)
    }

    /// An executor with a given instruction set; for tests, benchmarks and bug reports.
    ///
    /// # Errors
    ///
    /// As [`Cpu::new`].
    pub fn with_isa(isa: Isa, threads: usize) -> Result<Self, HostError> {
        Ok(Self { isa, pool: Pool::new(threads)? })
    }

    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The thread pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

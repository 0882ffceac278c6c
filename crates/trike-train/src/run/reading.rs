//! What a rank reads.

use trike_comm::Communicator;
use trike_core::OptionError;
use trike_nn::DecoderSpec;

use super::config::RunConfig;
use super::names::Parallel;
use crate::Stage;
use crate::trainer::check_ranks;

/// Which parts of the models a rank reads.
#[derive(Clone, Copy)]
pub(super) struct Reading<'c>(Option<&'c dyn Communicator>);

impl<'c> Reading<'c> {
    /// Whole models.
    pub(super) const ALL: Self = Self(None);

    /// Those that a rank of this run needs.
    pub(super) fn of(config: &RunConfig, comm: &'c dyn Communicator) -> Self {
        Self((config.parallel == Parallel::Pipeline).then_some(comm))
    }

    /// Refuses more ranks than the model has blocks.
    pub(super) fn check(self, spec: &DecoderSpec) -> Result<(), OptionError> {
        self.0.map_or(Ok(()), |comm| check_ranks(spec, comm))
    }

    /// The part of a model; `None` for all of it.
    pub(super) fn stage(self, spec: &DecoderSpec) -> Option<Stage> {
        self.0.map(|comm| Stage::new(spec, comm.rank(), comm.size()))
    }
}

//! Steps along the exact sum of gradients, with the optimizer's state sharded by tensors.

use std::borrow::Borrow;

use trike_comm::{CommError, Communicator, PartialSum, ReductionPlan, Shards};

use super::{all_losses, all_numbers};
use crate::data::Batch;
use crate::{StepReport, TrainEngine, TrainError, Trainer};

/// Assignment of tensors to the ranks that update them. Whole tensors, since Muon needs whole matrices.
#[derive(Debug)]
pub(super) struct Owners {
    /// The rank of each tensor.
    owner: Vec<usize>,
    /// Tensors in the order of the sharded vector: by rank, then by index.
    order: Vec<usize>,
    /// Elements of each tensor, by index.
    lens: Vec<usize>,
    shards: Shards,
}

impl Owners {
    /// Assigns tensors in descending order of size, each to the rank with the fewest elements.
    pub(super) fn new(lens: &[usize], ranks: usize) -> Result<Self, CommError> {
        let mut largest: Vec<usize> = (0..lens.len()).collect();
        largest.sort_by_key(|&place| std::cmp::Reverse(lens[place]));
        let (mut owner, mut loads) = (vec![0; lens.len()], vec![0usize; ranks.max(1)]);
        for place in largest {
            let least = (0..loads.len()).min_by_key(|&rank| loads[rank]).unwrap_or_default();
            owner[place] = least;
            loads[least] = loads[least].saturating_add(lens[place]);
        }
        let mut order: Vec<usize> = (0..lens.len()).collect();
        order.sort_by_key(|&place| owner[place]);
        Ok(Self { owner, order, lens: lens.to_vec(), shards: Shards::of(&loads)? })
    }

    pub(super) fn owns(&self, rank: usize, place: usize) -> bool {
        self.owner[place] == rank
    }

    pub(super) fn owner(&self, place: usize) -> usize {
        self.owner[place]
    }

    /// The tensors of a rank, in order.
    fn of_rank(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.order.iter().copied().filter(move |&place| self.owner[place] == rank)
    }
}

impl<E: TrainEngine> Trainer<'_, E> {
    /// A step along the sum of the gradients of all rows.
    pub(super) fn step_exact(
        &mut self,
        comm: &dyn Communicator,
        owners: &Owners,
        plan: &ReductionPlan,
        units: &[Batch],
        tokens: usize,
    ) -> Result<StepReport, TrainError> {
        let (losses, parts) = self.block_sums(plan, units)?;
        let loss = all_losses(comm, &losses, self.scaler.is_some())?;
        self.check_loss(loss)?;
        let own = {
            let mut flat = Vec::with_capacity(parts.len());
            for PartialSum { first, blocks, sum } in parts {
                let sum = sum.map(|sums| self.in_order(owners, sums)).transpose()?;
                flat.push(PartialSum { first, blocks, sum });
            }
            let parts: Vec<PartialSum<&[f32]>> = flat.iter().map(PartialSum::as_ref).collect();
            plan.reduce_scatter(comm, &parts, &owners.shards)?
        };
        let mut gradients: Vec<Option<E::Tensor>> = owners.lens.iter().map(|_| None).collect();
        let mut rest = &own[..];
        for place in owners.of_rank(comm.rank()) {
            let (values, after) = rest.split_at(owners.lens[place]);
            let mut gradient = [self.engine.upload(values.to_vec())?];
            self.unscale(&mut gradient)?;
            let [gradient] = gradient;
            gradients[place] = Some(gradient);
            rest = after;
        }
        self.update_by(loss, tokens, |trainer, factors| {
            let views: Vec<Option<&E::View>> =
                gradients.iter().map(|gradient| gradient.as_ref().map(Borrow::borrow)).collect();
            let squares = trainer.squares(comm, owners, &views)?;
            let parameters = trainer.trainable.trained_mut();
            let norm = trainer.optimizer.step_by(trainer.engine, parameters, &views, squares, factors)?;
            trainer.share_weights(comm, owners)?;
            Ok(norm)
        })
    }

    /// The values of all tensors, grouped by owner.
    fn in_order(&self, owners: &Owners, sums: Vec<E::Tensor>) -> Result<Vec<f32>, TrainError> {
        let mut sums: Vec<Option<E::Tensor>> = sums.into_iter().map(Some).collect();
        let mut flat = Vec::with_capacity(owners.shards.len());
        for &place in &owners.order {
            // One at a time, so that no two copies of everything are held.
            let Some(sum) = sums[place].take() else { continue };
            flat.extend_from_slice(&self.engine.download(sum.borrow())?);
        }
        Ok(flat)
    }

    /// The sum of the squares of all gradients, tensor by tensor in index order, as on one rank.
    fn squares(
        &self,
        comm: &dyn Communicator,
        owners: &Owners,
        gradients: &[Option<&E::View>],
    ) -> Result<f64, TrainError> {
        let mut own = Vec::new();
        for place in owners.of_rank(comm.rank()) {
            let Some(gradient) = gradients[place] else { continue };
            own.push(self.engine.sum_of_squares(&[gradient])?);
        }
        let mut squares = vec![0.0; owners.lens.len()];
        for (rank, of_rank) in all_numbers(comm, &own)?.iter().enumerate() {
            let places: Vec<usize> = owners.of_rank(rank).collect();
            if places.len() != of_rank.len() {
                let (expected, got) = (8 * places.len(), 8 * of_rank.len());
                return Err(CommError::Cut { rank, expected, got }.into());
            }
            places.iter().zip(of_rank).for_each(|(&place, square)| squares[place] = *square);
        }
        Ok(squares.iter().sum())
    }

    /// Broadcasts the weights that this rank has updated.
    fn share_weights(&mut self, comm: &dyn Communicator, owners: &Owners) -> Result<(), TrainError> {
        let mut own = Vec::with_capacity(owners.shards.of_rank(comm.rank()).len());
        for place in owners.of_rank(comm.rank()) {
            let values = &self.parameters().all()[place].values;
            own.extend_from_slice(&self.engine.download(values.borrow())?);
        }
        let mut all = vec![0.0; owners.shards.len()];
        owners.shards.all_gather(comm, &own, &mut all)?;
        let mut rest = &all[..];
        for &place in &owners.order {
            let (values, after) = rest.split_at(owners.lens[place]);
            if !owners.owns(comm.rank(), place) {
                self.trainable.trained_mut().all_mut()[place].values = self.engine.upload(values.to_vec())?;
            }
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_an_owner_and_shares_are_near_each_other() {
        let lens = [500, 10, 300, 10, 300, 10, 0, 400];
        for ranks in 1..=9 {
            let owners = Owners::new(&lens, ranks).expect("owners");
            let mut places: Vec<usize> = (0..ranks).flat_map(|rank| owners.of_rank(rank)).collect();
            assert_eq!(places, owners.order);
            places.sort_unstable();
            assert_eq!(places, (0..lens.len()).collect::<Vec<_>>());
            for rank in 0..ranks {
                let elements: usize = owners.of_rank(rank).map(|place| lens[place]).sum();
                assert_eq!(elements, owners.shards.of_rank(rank).len());
                // Bounded by the largest tensor, or by the mean plus the tensor assigned last.
                assert!(elements <= (1530 / ranks + 300).max(500), "{ranks} ranks: {elements}");
            }
        }
    }
}

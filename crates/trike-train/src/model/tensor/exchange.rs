//! What ranks give to each other.

use std::borrow::Borrow;
use std::ops::Range;

use trike_comm::{CommError, Communicator, Shards, exchange_floats, receive_floats, send_floats};
use trike_grad::{Engine, ScaleGroups, TernaryScale};
use trike_trit::Granularity;

use super::TensorShard;
use crate::{Parameters, TrainError};

/// Some columns of a matrix of rows of `width`.
pub(super) fn columns(matrix: &[f32], width: usize, own: Range<usize>) -> Vec<f32> {
    matrix.chunks_exact(width.max(1)).flat_map(|row| &row[own.clone()]).copied().collect()
}

/// Matrices of `tokens` rows of which each rank has some columns, one message for all of them.
pub(super) fn gather_columns(
    comm: &dyn Communicator,
    tokens: usize,
    matrices: &[(&Shards, &[f32])],
) -> Result<Vec<Vec<f32>>, CommError> {
    let own: Vec<f32> = matrices.iter().flat_map(|(_, own)| *own).copied().collect();
    let width = |rank: usize| matrices.iter().map(|(shards, _)| shards.of_rank(rank).len()).sum::<usize>();
    let lens: Vec<usize> = (0..comm.size()).map(|rank| tokens * width(rank)).collect();
    let messages = Shards::of(&lens)?;
    let mut all = vec![0.0; messages.len()];
    messages.all_gather(comm, &own, &mut all)?;
    let mut whole: Vec<Vec<f32>> =
        matrices.iter().map(|(shards, _)| vec![0.0; tokens * shards.len()]).collect();
    for rank in 0..comm.size() {
        let mut rest = &all[messages.of_rank(rank)];
        for ((shards, _), whole) in matrices.iter().zip(&mut whole) {
            let columns = shards.of_rank(rank);
            let (part, after) = rest.split_at(tokens * columns.len());
            rest = after;
            let rows = whole.chunks_exact_mut(shards.len().max(1));
            for (row, part) in rows.zip(part.chunks_exact(columns.len().max(1))) {
                row[columns.clone()].copy_from_slice(part);
            }
        }
    }
    Ok(whole)
}

/// This rank's columns of all rows of a matrix of which each rank has some rows.
pub(crate) fn columns_of(
    comm: &dyn Communicator,
    rows: &Shards,
    cols: &Shards,
    own: &[f32],
) -> Result<Vec<f32>, CommError> {
    let parts: Vec<Vec<f32>> =
        (0..comm.size()).map(|rank| columns(own, cols.len(), cols.of_rank(rank))).collect();
    let width = cols.of_rank(comm.rank()).len();
    let lens: Vec<usize> = (0..comm.size()).map(|rank| rows.of_rank(rank).len() * width).collect();
    Ok(exchange_floats(comm, &parts, &lens)?.concat())
}

/// The scales of matrices that have one each, by their place. The ranks take turns in receiving a whole matrix, whose mean they compute
/// as one machine does.
pub(crate) fn scales_of<E: Engine>(
    engine: &E,
    comm: &dyn Communicator,
    shard: &TensorShard,
    parameters: &Parameters<E::Tensor>,
    rule: TernaryScale,
) -> Result<Vec<Option<E::Tensor>>, TrainError> {
    let places =
        parameters.all().iter().enumerate().filter(|(_, parameter)| parameter.name.is_block_matrix());
    let places: Vec<usize> = places.map(|(place, _)| place).collect();
    let mut own = Vec::new();
    for (turn, &place) in places.iter().enumerate() {
        let parameter = &parameters.all()[place];
        let values = engine.download(parameter.values.borrow())?;
        let owner = turn % comm.size();
        if owner != comm.rank() {
            send_floats(comm, owner, &values)?;
            continue;
        }
        let Some(rows) = shard.outputs(parameter.name) else { continue };
        let mut whole = Vec::with_capacity(rows.len() * parameter.cols);
        for rank in 0..comm.size() {
            match rank == owner {
                true => whole.extend_from_slice(&values),
                false => {
                    whole.extend(receive_floats(comm, rank, rows.of_rank(rank).len() * parameter.cols)?);
                }
            }
        }
        let groups = ScaleGroups::new(Granularity::Tensor, rows.len(), parameter.cols);
        let whole = engine.upload(whole)?;
        let scale = engine.scales(whole.borrow(), groups, rule == TernaryScale::LeastSquares)?;
        own.extend_from_slice(&engine.download(scale.borrow())?);
    }
    let found = Shards::of(
        &(0..comm.size())
            .map(|rank| (0..places.len()).filter(|turn| turn % comm.size() == rank).count())
            .collect::<Vec<_>>(),
    )?;
    let mut all = vec![0.0; found.len()];
    found.all_gather(comm, &own, &mut all)?;
    let mut scales: Vec<Option<E::Tensor>> = Vec::new();
    scales.resize_with(parameters.all().len(), || None);
    for (turn, place) in places.into_iter().enumerate() {
        let of_rank = found.of_rank(turn % comm.size());
        scales[place] = Some(engine.upload(vec![all[of_rank.start + turn / comm.size()]])?);
    }
    Ok(scales)
}

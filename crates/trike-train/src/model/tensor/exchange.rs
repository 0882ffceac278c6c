//! Exchanges between tensor-parallel ranks.

use std::borrow::{Borrow, Cow};
use std::ops::Range;

use trike_autodiff::{Elements, GradError, ScaleGroups, TapeEngine, TernaryScale};
use trike_comm::{CommError, Communicator, Shards, exchange_floats, receive_floats, send_floats};
use trike_trit::Granularity;

use super::TensorShard;
use crate::{Parameters, TrainError};

/// A range of columns of a matrix with rows of `width`.
fn columns(matrix: &[f32], width: usize, own: Range<usize>) -> Vec<f32> {
    matrix.chunks_exact(width.max(1)).flat_map(|row| &row[own.clone()]).copied().collect()
}

/// This rank's columns of a whole matrix.
pub(super) fn own_columns<E: TapeEngine>(
    engine: &E,
    comm: &dyn Communicator,
    shards: &Shards,
    matrix: &E::View,
) -> Result<E::Tensor, GradError> {
    let (width, own) = (shards.len(), shards.of_rank(comm.rank()));
    let len = matrix.elements() / width.max(1) * own.len();
    let mut all = engine.through_host(&[matrix], &[len], |values| {
        Ok::<_, GradError>(vec![columns(&values[0], width, own)])
    })?;
    Ok(all.swap_remove(0))
}

/// Gathers matrices of `tokens` rows whose columns are divided among ranks, in one message for all of them.
pub(super) fn gather_columns<E: TapeEngine>(
    engine: &E,
    comm: &dyn Communicator,
    tokens: usize,
    shards: &[&Shards],
    own: &[&E::View],
) -> Result<Vec<E::Tensor>, GradError> {
    let lens: Vec<usize> = shards.iter().map(|shards| tokens * shards.len()).collect();
    engine.through_host(own, &lens, |own| {
        gathered(comm, tokens, shards, own).map_err(|error| GradError::Operation(Box::new(error)))
    })
}

fn gathered(
    comm: &dyn Communicator,
    tokens: usize,
    all_shards: &[&Shards],
    own: &[Cow<'_, [f32]>],
) -> Result<Vec<Vec<f32>>, CommError> {
    let own: Vec<f32> = own.iter().flat_map(|own| &**own).copied().collect();
    let width = |rank: usize| all_shards.iter().map(|shards| shards.of_rank(rank).len()).sum::<usize>();
    let lens: Vec<usize> = (0..comm.size()).map(|rank| tokens * width(rank)).collect();
    let messages = Shards::of(&lens)?;
    let mut all = vec![0.0; messages.len()];
    messages.all_gather(comm, &own, &mut all)?;
    let mut whole: Vec<Vec<f32>> = all_shards.iter().map(|shards| vec![0.0; tokens * shards.len()]).collect();
    for rank in 0..comm.size() {
        let mut rest = &all[messages.of_rank(rank)];
        for (shards, whole) in all_shards.iter().zip(&mut whole) {
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

/// This rank's columns of a matrix whose rows are divided among ranks.
pub(crate) fn columns_of<E: TapeEngine>(
    engine: &E,
    comm: &dyn Communicator,
    rows: &Shards,
    cols: &Shards,
    own: &E::View,
) -> Result<E::Tensor, TrainError> {
    let width = cols.of_rank(comm.rank()).len();
    let mut all = engine.through_host(&[own], &[rows.len() * width], |own| {
        let parts: Vec<Vec<f32>> =
            (0..comm.size()).map(|rank| columns(&own[0], cols.len(), cols.of_rank(rank))).collect();
        let lens: Vec<usize> = (0..comm.size()).map(|rank| rows.of_rank(rank).len() * width).collect();
        Ok::<_, TrainError>(vec![exchange_floats(comm, &parts, &lens)?.concat()])
    })?;
    Ok(all.swap_remove(0))
}

/// The scales of matrices with a single scale, by parameter index. Whole matrices are distributed among the ranks, each of which
/// computes their mean magnitude as a single machine does.
pub(crate) fn scales_of<E: TapeEngine>(
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
        let Some(rows) = shard.outputs(parameter.name) else { continue };
        let (owner, cols) = (turn % comm.size(), parameter.cols);
        let len = (owner == comm.rank()).then_some(rows.len() * cols);
        let whole = engine.through_host(&[parameter.values.borrow()], len.as_slice(), |values| {
            if owner != comm.rank() {
                send_floats(comm, owner, &values[0])?;
                return Ok::<_, TrainError>(Vec::new());
            }
            let mut whole = Vec::with_capacity(rows.len() * cols);
            for rank in 0..comm.size() {
                match rank == owner {
                    true => whole.extend_from_slice(&values[0]),
                    false => whole.extend(receive_floats(comm, rank, rows.of_rank(rank).len() * cols)?),
                }
            }
            Ok(vec![whole])
        })?;
        let Some(whole) = whole.first() else { continue };
        let groups = ScaleGroups::new(Granularity::Tensor, rows.len(), cols);
        let scale = engine.scales(whole.borrow(), groups, rule == TernaryScale::LeastSquares)?;
        own.extend_from_slice(&engine.download(scale.borrow())?);
    }
    let found = Shards::of(
        &(0..comm.size())
            .map(|rank| (0..places.len()).filter(|turn| turn % comm.size() == rank).count())
            .collect::<Vec<_>>(),
    )?;
    let all = engine.through_host(&[], &vec![1; places.len()], |_| {
        let mut all = vec![0.0; found.len()];
        found.all_gather(comm, &own, &mut all)?;
        let of_turn = |turn: usize| all[found.of_rank(turn % comm.size()).start + turn / comm.size()];
        Ok::<_, TrainError>((0..places.len()).map(|turn| vec![of_turn(turn)]).collect())
    })?;
    let mut scales: Vec<Option<E::Tensor>> = Vec::new();
    scales.resize_with(parameters.all().len(), || None);
    for (place, scale) in places.into_iter().zip(all) {
        scales[place] = Some(scale);
    }
    Ok(scales)
}

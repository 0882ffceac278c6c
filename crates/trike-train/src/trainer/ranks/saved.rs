//! Checkpoints of data-parallel ranks, written and read by the first one.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trike_comm::codec::Saved;
use trike_comm::{CommError, Communicator, broadcast_floats};

use super::{Mode, Ranks};
use crate::checkpoint::{self, Keep, Named, RunState, StateFile};
use crate::{TrainEngine, TrainError, Trainer};

/// Elements of a message.
const PIECE: usize = 1 << 22;
/// Maximum size of the state and the tensor names, in bytes.
const MOST: usize = 1 << 26;
/// The outer optimizer's momentum.
const OUTER: &str = "outer.momentum";

/// A checkpoint that the first rank has read, without the tensors.
#[derive(Serialize, Deserialize)]
enum Found {
    State(Box<StateFile>, Vec<(String, usize)>),
    /// It could not.
    Problem(String),
}

/// Sends values of rank `from` to the first rank; the other ranks get nothing.
fn to_first(
    comm: &dyn Communicator,
    from: usize,
    values: &[f32],
    len: usize,
) -> Result<Option<Vec<f32>>, TrainError> {
    let rank = comm.rank();
    if rank == 0 && from == 0 {
        return Ok(Some(values.to_vec()));
    }
    if rank == from {
        for piece in values.chunks(PIECE) {
            let message: Vec<u8> = piece.iter().flat_map(|v| v.to_le_bytes()).collect();
            comm.send(0, &message)?;
        }
        return Ok(None);
    }
    if rank != 0 {
        return Ok(None);
    }
    let mut all = Vec::new();
    while all.len() < len {
        let most = 4 * PIECE.min(len - all.len());
        let message = comm.receive(from, most)?;
        if message.len() != most {
            return Err(CommError::Cut { rank: from, expected: most, got: message.len() }.into());
        }
        all.extend(message.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)));
    }
    Ok(Some(all))
}

impl<E: TrainEngine> Trainer<'_, E> {
    /// Writes a checkpoint on the first rank, with the state of all ranks.
    pub(crate) fn save_together(
        &self,
        ranks: &Ranks<'_>,
        dir: &Path,
        state: &RunState,
        keep: Keep,
    ) -> Result<PathBuf, TrainError> {
        let comm = ranks.comm;
        let mut all: Named = Vec::new();
        let mut gather = |name: String, from: usize, values: &[f32], len: usize| -> Result<(), TrainError> {
            all.extend(to_first(comm, from, values, len)?.map(|values| (name, values)));
            Ok(())
        };
        let read = |tensor: Option<&E::Tensor>| -> Result<Vec<f32>, TrainError> {
            let Some(tensor) = tensor else { return Ok(Vec::new()) };
            Ok(self.engine.download(tensor.borrow())?.into_owned())
        };
        for (place, parameter) in self.parameters().all().iter().enumerate() {
            let (key, len) = (parameter.key(), trike_autodiff::Elements::elements(&parameter.values));
            gather(format!("weight.{key}"), 0, &read(Some(&parameter.values))?, len)?;
            let means = [("first", &self.optimizer.first, true), ("second", &self.optimizer.second, false)];
            for (part, means, always) in means {
                if !always && !self.optimizer.has_second(parameter.name) {
                    continue;
                }
                let values = read(means[place].as_ref())?;
                match &ranks.mode {
                    Mode::Exact(owners) => {
                        gather(format!("{part}.{key}"), owners.owner(place), &values, len)?;
                    }
                    // Each rank has its own.
                    Mode::Local(_) => {
                        for rank in 0..comm.size() {
                            gather(of_rank(rank, &format!("{part}.{key}")), rank, &values, len)?;
                        }
                    }
                }
            }
        }
        let codec = match &ranks.mode {
            Mode::Exact(_) => None,
            Mode::Local(local) => {
                gather(OUTER.to_owned(), 0, &local.momentum, local.momentum.len())?;
                local.codec.as_ref()
            }
        };
        for Saved { name, values, .. } in codec.iter().flat_map(|codec| codec.state()) {
            for rank in 0..comm.size() {
                gather(of_rank(rank, &format!("codec.{name}")), rank, values, values.len())?;
            }
        }
        match comm.rank() {
            0 => checkpoint::write(dir, state, self.optimizer.steps(), comm.size(), &all, keep),
            _ => Ok(checkpoint::folder(dir, state.step)),
        }
    }

    /// Reads a checkpoint on the first rank, and distributes it.
    pub(crate) fn resume_together(
        &mut self,
        ranks: &mut Ranks<'_>,
        path: &Path,
        config: &Value,
    ) -> Result<RunState, TrainError> {
        let comm = ranks.comm;
        let wrong = |problem: String| TrainError::Checkpoint { path: path.to_owned(), problem };
        let (mut own, found) = match comm.rank() {
            0 => match checkpoint::read(path, config) {
                Ok((file, tensors)) => {
                    let lens = tensors.iter().map(|(name, values)| (name.clone(), values.len())).collect();
                    (tensors, Ok(Found::State(Box::new(file), lens)))
                }
                Err(error) => (Vec::new(), Err(error)),
            },
            _ => (Vec::new(), Ok(Found::Problem(String::new()))),
        };
        let first = (comm.rank() == 0).then(|| match &found {
            Ok(found) => serde_json::to_vec(found),
            Err(error) => serde_json::to_vec(&Found::Problem(error.to_string())),
        });
        let message = first.transpose().map_err(|e| wrong(e.to_string()))?;
        let message = comm.broadcast(0, message.as_deref(), MOST)?;
        // The first rank returns the original error.
        found?;
        let found: Found =
            serde_json::from_slice(&message).map_err(|e| wrong(format!("from rank 0: {e}")))?;
        let (file, lens) = match found {
            Found::State(file, lens) => (file, lens),
            Found::Problem(problem) => return Err(TrainError::OfRank { rank: 0, problem }),
        };
        let mut kept =
            Kept { ranks: file.ranks.max(1), comm, tensors: HashMap::new(), codec: HashMap::new() };
        own.reverse();
        for (name, len) in lens {
            let values = own.pop().map(|(_, values)| values);
            kept.add(name, broadcast_floats(comm, 0, values.as_deref(), len)?);
        }
        self.place_together(ranks, path, &file, kept)?;
        Ok(file.run)
    }

    fn place_together(
        &mut self,
        ranks: &mut Ranks<'_>,
        path: &Path,
        file: &StateFile,
        kept: Kept<'_>,
    ) -> Result<(), TrainError> {
        let wrong = |problem: String| TrainError::Checkpoint { path: path.to_owned(), problem };
        let comm = ranks.comm;
        let mut tensors = kept.tensors;
        let mut outer = None;
        let codec = match &mut ranks.mode {
            Mode::Exact(_) => None,
            Mode::Local(local) => {
                let momentum = tensors.remove(OUTER).filter(|values| values.len() == local.momentum.len());
                let problem = || wrong(format!("{OUTER} is missing or of another length"));
                outer = Some(momentum.ok_or_else(problem)?);
                local.codec.as_mut()
            }
        };
        let mut states = Vec::new();
        if let Some(codec) = &codec {
            for Saved { name, carry, values } in codec.state() {
                let old = kept.codec.get(name).map_or(&[][..], Vec::as_slice);
                let old: Vec<&[f32]> = old.iter().map(Vec::as_slice).collect();
                let expected = if kept.ranks == comm.size() { 1 } else { kept.ranks };
                if old.len() != expected || old.iter().any(|old| old.len() != values.len()) {
                    return Err(wrong(format!("the codec's {name} is missing or of another length")));
                }
                states.push(match old[..] {
                    [own] => own.to_vec(),
                    _ => carry.over(&old, comm.rank(), comm.size())?,
                });
            }
        }
        let (parameters, optimizer) = (self.trainable.trained_mut(), &mut self.optimizer);
        let write = |values| Ok(self.engine.upload(values)?);
        checkpoint::place(path, file, tensors, parameters, optimizer, write)?;
        // Only now, when no check can fail any more.
        let to = codec.map(|codec| codec.state_mut()).unwrap_or_default();
        to.into_iter().zip(&states).for_each(|(to, state)| to.copy_from_slice(state));
        if let (Mode::Local(local), Some(outer)) = (&mut ranks.mode, outer) {
            (local.start, local.momentum) = (self.flat_weights()?, outer);
        }
        Ok(())
    }
}

fn of_rank(rank: usize, name: &str) -> String {
    format!("rank{rank}.{name}")
}

/// The tensors of a checkpoint that this rank needs.
struct Kept<'c> {
    /// Ranks that wrote it.
    ranks: usize,
    comm: &'c dyn Communicator,
    tensors: HashMap<String, Vec<f32>>,
    /// Codec states by name: this rank's, or with another number of ranks those of all of them.
    codec: HashMap<String, Vec<Vec<f32>>>,
}

impl Kept<'_> {
    fn add(&mut self, name: String, values: Vec<f32>) {
        let rank = name.strip_prefix("rank").and_then(|rest| rest.split_once('.'));
        let Some((rank, of_rank)) = rank else {
            self.tensors.insert(name, values);
            return;
        };
        let is_as_many = self.ranks == self.comm.size();
        if is_as_many && rank.parse() != Ok(self.comm.rank()) {
            return;
        }
        if let Some(name) = of_rank.strip_prefix("codec.") {
            self.codec.entry(name.to_owned()).or_default().push(values);
        } else if is_as_many {
            self.tensors.insert(of_rank.to_owned(), values);
        } else {
            // Moments that differ between ranks are averaged.
            let weight = 1.0 / self.ranks as f32;
            let sum = self.tensors.entry(of_rank.to_owned()).or_insert_with(|| vec![0.0; values.len()]);
            sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum += weight * value);
        }
    }
}

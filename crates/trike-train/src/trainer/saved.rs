//! Checkpoints of divided models: the first rank writes and reads them one tensor at a time, so that it never holds all of them.
//! The format is that of a trainer without ranks.

use std::borrow::{Borrow, Cow};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use trike_comm::{CommError, Communicator, receive_floats, send_floats};
use trike_nn::WeightName;

use crate::checkpoint::{self, Keep, RunState, StateFile, Tensors};
use crate::model::{Partition, shapes};
use crate::{Parameter, Parameters, Part, TrainEngine, TrainError, Trainer};

/// Maximum size of the state and the tensor names, in bytes.
const MOST: usize = 1 << 26;
/// Sent by the first rank after its last request for a tensor.
const NO_MORE: u64 = u64::MAX;

/// A checkpoint tensor of a weight: the weight itself, or a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Weight,
    First,
    Second,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
struct Entry {
    kind: Kind,
    weight: WeightName,
    shape: (usize, usize),
}

impl Entry {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Weight => "weight",
            Kind::First => "first",
            Kind::Second => "second",
        };
        format!("{kind}.{}", Parameter::key_of(self.weight, Part::Whole))
    }

    fn len(&self) -> usize {
        self.shape.0 * self.shape.1
    }

    /// The elements that a rank needs.
    fn part(&self, of: &dyn Partition, rank: usize) -> Option<Range<usize>> {
        match self.kind {
            Kind::Weight => of.part(self.weight, self.shape, rank),
            Kind::First | Kind::Second => of.state(self.weight, self.shape, rank),
        }
    }
}

/// The state and the tensor lengths of a checkpoint, or why it cannot be read.
type Found = Result<(StateFile, Vec<(String, usize)>), String>;

/// A tensor, possibly of other ranks, that is fetched when it is written.
struct Remote<'r> {
    comm: &'r dyn Communicator,
    sources: Vec<(usize, Range<usize>)>,
    number: u64,
    shape: [usize; 1],
    own: &'r dyn Fn(u64) -> Result<Vec<f32>, TrainError>,
    /// The first failure, after which no values are fetched.
    failed: &'r RefCell<Option<TrainError>>,
}

impl Remote<'_> {
    fn values(&self) -> Result<Vec<f32>, TrainError> {
        let mut all = Vec::new();
        for (rank, elements) in &self.sources {
            let part = if *rank == self.comm.rank() {
                (self.own)(self.number)?
            } else {
                self.comm.send(*rank, &self.number.to_le_bytes())?;
                receive_floats(self.comm, *rank, elements.len())?
            };
            if all.is_empty() {
                all = part;
            } else {
                all.extend_from_slice(&part);
            }
        }
        Ok(all)
    }
}

impl safetensors::View for Remote<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        safetensors::Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut failed = self.failed.borrow_mut();
        if failed.is_none() {
            match self.values() {
                Ok(values) => return values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into(),
                Err(error) => *failed = Some(error),
            }
        }
        vec![0; self.data_len()].into()
    }

    fn data_len(&self) -> usize {
        4 * self.shape[0]
    }
}

impl<E: TrainEngine> Trainer<'_, E> {
    /// The tensors of a checkpoint.
    fn entries(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        for (weight, shape) in shapes(self.parameters().spec()) {
            let kinds = [
                (Kind::Weight, true),
                (Kind::First, true),
                (Kind::Second, self.optimizer.has_second(weight)),
            ];
            let has = kinds.into_iter().filter(|(_, has)| *has);
            all.extend(has.map(|(kind, _)| Entry { kind, weight, shape }));
        }
        all
    }

    /// This rank's values of a tensor.
    fn values_of(&self, entry: &Entry) -> Result<Vec<f32>, TrainError> {
        let place = self.parameters().place(entry.weight);
        let tensor = place.and_then(|place| match entry.kind {
            Kind::Weight => Some(&self.parameters().all()[place].values),
            Kind::First => self.optimizer.first[place].as_ref(),
            Kind::Second => self.optimizer.second[place].as_ref(),
        });
        let tensor = tensor.ok_or_else(|| TrainError::NoParameter { name: entry.name() })?;
        Ok(self.engine.download(tensor.borrow())?.into_owned())
    }

    /// Writes a checkpoint on the first rank, which requests the tensors of the other ranks.
    pub(super) fn save_parts(
        &self,
        comm: &dyn Communicator,
        partition: &dyn Partition,
        dir: &Path,
        state: &RunState,
        keep: Keep,
    ) -> Result<PathBuf, TrainError> {
        let entries = self.entries();
        let own = |number: u64| {
            let entry = usize::try_from(number).ok().and_then(|number| entries.get(number));
            let damaged = CommError::Damaged { rank: 0, problem: "it requests a missing tensor" };
            self.values_of(entry.ok_or(damaged)?)
        };
        if comm.rank() > 0 {
            loop {
                let message = comm.receive(0, 8)?;
                let [number] = message.as_chunks().0 else {
                    return Err(CommError::Cut { rank: 0, expected: 8, got: message.len() }.into());
                };
                match u64::from_le_bytes(*number) {
                    NO_MORE => return Ok(checkpoint::folder(dir, state.step)),
                    number => send_floats(comm, 0, &own(number)?)?,
                }
            }
        }
        let failed = RefCell::new(None);
        let tensors = (0..).zip(&entries).map(|(number, entry)| {
            let (sources, shape) = (partition.sources(entry.weight, entry.shape), [entry.len()]);
            (entry.name(), Remote { comm, sources, number, shape, own: &own, failed: &failed })
        });
        let check = || failed.take().map_or(Ok(()), Err);
        let steps = self.optimizer.steps();
        let written = checkpoint::write_views(dir, state, steps, 1, tensors.collect(), check, keep);
        for rank in 1..comm.size() {
            let told = comm.send(rank, &NO_MORE.to_le_bytes());
            // The original error comes first.
            if written.is_ok() {
                told?;
            }
        }
        written
    }

    /// Reads a checkpoint on the first rank, which sends each rank its tensors.
    pub(super) fn resume_parts(
        &mut self,
        comm: &dyn Communicator,
        partition: &dyn Partition,
        path: &Path,
        config: &Value,
    ) -> Result<RunState, TrainError> {
        let wrong = |problem: String| TrainError::Checkpoint { path: path.to_owned(), problem };
        let mut opened = (comm.rank() == 0).then(|| checkpoint::open(path, config));
        let found: Option<Found> = opened.as_ref().map(|opened| match opened {
            Ok((file, tensors)) => Ok((file.clone(), tensors.lens())),
            Err(error) => Err(error.to_string()),
        });
        let message = found.map(|found| serde_json::to_vec(&found)).transpose();
        let message = message.map_err(|e| wrong(e.to_string()))?;
        let message = comm.broadcast(0, message.as_deref(), MOST)?;
        let mut tensors: Option<Tensors> = match opened.take() {
            None => None,
            // The first rank returns the original error.
            Some(opened) => Some(opened?.1),
        };
        let found: Found =
            serde_json::from_slice(&message).map_err(|e| wrong(format!("from rank 0: {e}")))?;
        let (file, lens) = found.map_err(|problem| TrainError::OfRank { rank: 0, problem })?;
        let lens: HashMap<String, usize> = lens.into_iter().collect();
        let entries = self.entries();
        // Checked on all ranks, so that all refuse it.
        for entry in &entries {
            match lens.get(&entry.name()) {
                None => return Err(wrong(format!("{} is missing", entry.name()))),
                Some(len) if *len != entry.len() => {
                    let name = entry.name();
                    return Err(wrong(format!("{name} has {len} numbers: expected {}", entry.len())));
                }
                Some(_) => {}
            }
        }
        let mut own = HashMap::new();
        for entry in &entries {
            let name = entry.name();
            let part = entry.part(partition, comm.rank());
            let values = match (&mut tensors, part) {
                (Some(tensors), part) => {
                    let values = tensors.read(&name)?;
                    for rank in 1..comm.size() {
                        if let Some(part) = entry.part(partition, rank) {
                            send_floats(comm, rank, &values[part])?;
                        }
                    }
                    match part {
                        Some(part) if part.len() == values.len() => values,
                        Some(part) => values[part].to_vec(),
                        None => continue,
                    }
                }
                (None, Some(part)) => receive_floats(comm, 0, part.len())?,
                (None, None) => continue,
            };
            own.insert(name, values);
        }
        let (parameters, optimizer) = (self.trainable.trained_mut(), &mut self.optimizer);
        let write = |values| Ok(self.engine.upload(values)?);
        checkpoint::place(path, &file, own, parameters, optimizer, write)?;
        Ok(file.run)
    }

    /// All trained weights, on the host of the first rank; `None` on the other pipeline or tensor-parallel ranks. A collective
    /// call.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`] of the executor, and [`TrainError::Comm`].
    pub fn gather(&self) -> Result<Option<Parameters>, TrainError> {
        let Some((comm, partition)) = self.distribution.partition() else { return self.download().map(Some) };
        let spec = self.parameters().spec();
        let mut all = Vec::new();
        for (name, shape) in shapes(spec) {
            let entry = Entry { kind: Kind::Weight, weight: name, shape };
            let mut values = Vec::new();
            for (source, elements) in partition.sources(name, shape) {
                match (comm.rank(), source) {
                    (0, 0) => values.extend(self.values_of(&entry)?),
                    (0, source) => values.extend(receive_floats(comm, source, elements.len())?),
                    (rank, source) if rank == source => send_floats(comm, 0, &self.values_of(&entry)?)?,
                    _ => {}
                }
            }
            if comm.rank() == 0 {
                all.push(Parameter { name, part: Part::Whole, cols: shape.1, values });
            }
        }
        Ok((comm.rank() == 0).then(|| Parameters::of(spec, all)))
    }
}

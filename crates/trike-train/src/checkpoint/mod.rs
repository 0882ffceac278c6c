//! Checkpoints of runs, written atomically.

mod tensors;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensorError, View};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trike_autodiff::Elements;

pub(crate) use self::tensors::Tensors;
use crate::data::Position;
use crate::{LossScaler, Optimizer, Parameters, TrainError};

/// File name of a checkpoint's state.
const STATE: &str = "state.json";
/// File name of a checkpoint's tensors.
const TENSORS: &str = "state.safetensors";
/// Version of the layout.
const VERSION: u32 = 1;

/// State that a run needs to continue bit-identically, in addition to the weights and the optimizer's moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Steps taken.
    pub step: usize,
    /// Start of the next batch.
    pub position: Position,
    /// The configuration of the run; resuming requires the same one.
    pub config: Value,
    /// State of the caller, returned by [`Trainer::resume`](crate::Trainer::resume).
    #[serde(default)]
    pub memory: Value,
    /// The loss scale, if products are f16.
    #[serde(default)]
    pub loss_scaler: Option<LossScaler>,
}

/// Which checkpoints are kept when a new one is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Number of newest checkpoints, at least 1.
    pub newest: usize,
    /// Also the checkpoint of this step.
    pub also: Option<usize>,
}

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StateFile {
    version: u32,
    pub(crate) optimizer_steps: u64,
    /// Ranks that wrote it.
    #[serde(default = "one")]
    pub(crate) ranks: usize,
    #[serde(flatten)]
    pub(crate) run: RunState,
}

fn one() -> usize {
    1
}

/// Names and values of tensors.
pub(crate) type Named = Vec<(String, Vec<f32>)>;

/// The directory of the checkpoint after `step` steps.
pub(crate) fn folder(dir: &Path, step: usize) -> PathBuf {
    dir.join(format!("step-{step:08}"))
}

/// Writes a checkpoint into a new directory below `dir` and removes all checkpoints except those of `keep`. The directory is
/// renamed into place after everything in it is on disk, so an interruption leaves earlier checkpoints intact.
///
/// # Errors
///
/// [`TrainError::Io`], for example when the disk is full; the partial checkpoint is then removed.
pub fn save(
    dir: &Path,
    state: &RunState,
    parameters: &Parameters,
    optimizer: &Optimizer,
    keep: Keep,
) -> Result<PathBuf, TrainError> {
    let tensors = tensors_of(parameters, optimizer, |values: &Vec<f32>| Ok(values.clone()))?;
    write(dir, state, optimizer.steps(), 1, &tensors, keep)
}

/// [`save`] of named tensors, for a run with `ranks` ranks.
pub(crate) fn write(
    dir: &Path,
    state: &RunState,
    optimizer_steps: u64,
    ranks: usize,
    tensors: &Named,
    keep: Keep,
) -> Result<PathBuf, TrainError> {
    let views = tensors.iter().map(|(name, values)| (name.clone(), Numbers(values, [values.len()])));
    write_views(dir, state, optimizer_steps, ranks, views.collect(), || Ok(()), keep)
}

/// [`write`] of tensors that are fetched when they are written; `check` reports whether all of them arrived.
pub(crate) fn write_views<V: View>(
    dir: &Path,
    state: &RunState,
    optimizer_steps: u64,
    ranks: usize,
    tensors: Vec<(String, V)>,
    check: impl Fn() -> Result<(), TrainError>,
    keep: Keep,
) -> Result<PathBuf, TrainError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| TrainError::Io { path, source }
    };
    let (to, temporary) = (folder(dir, state.step), dir.join(format!(".step-{:08}", state.step)));
    fs::create_dir_all(dir).map_err(io(dir))?;
    // Left over from an interrupted run.
    remove(&temporary)?;
    fs::create_dir(&temporary).map_err(io(&temporary))?;
    let write = || -> Result<(), TrainError> {
        let file = StateFile { version: VERSION, optimizer_steps, ranks, run: state.clone() };
        let json = serde_json::to_vec_pretty(&file)
            .map_err(|e| TrainError::Checkpoint { path: to.clone(), problem: e.to_string() })?;
        let path = temporary.join(STATE);
        File::create(&path).and_then(|mut file| file.write_all(&json)).map_err(io(&path))?;
        // One tensor at a time, without a second copy of all of them.
        safetensors::serialize_to_file(tensors, None, &temporary.join(TENSORS)).map_err(|e| match e {
            SafeTensorError::IoError(source) => io(&temporary.join(TENSORS))(source),
            other => TrainError::Checkpoint { path: to.clone(), problem: other.to_string() },
        })?;
        check()?;
        for name in [STATE, TENSORS] {
            let path = temporary.join(name);
            File::open(&path).and_then(|file| file.sync_all()).map_err(io(&path))?;
        }
        remove(&to)?;
        fs::rename(&temporary, &to).map_err(io(&to))?;
        sync(dir)
    };
    if let Err(error) = write() {
        let _ = fs::remove_dir_all(&temporary);
        return Err(error);
    }
    let mut all = steps(dir)?;
    all.truncate(all.len().saturating_sub(keep.newest.max(1)));
    for step in all.into_iter().filter(|&step| Some(step) != keep.also) {
        remove(&folder(dir, step))?;
    }
    Ok(to)
}

/// The newest checkpoint of `dir`, if any.
///
/// # Errors
///
/// [`TrainError::Io`].
pub fn newest(dir: &Path) -> Result<Option<PathBuf>, TrainError> {
    if !dir.exists() {
        return Ok(None);
    }
    Ok(steps(dir)?.last().map(|&step| folder(dir, step)))
}

/// Reads the state of a checkpoint, without its tensors.
///
/// # Errors
///
/// [`TrainError::Io`], and [`TrainError::Checkpoint`] for a malformed file.
pub fn peek(path: &Path) -> Result<RunState, TrainError> {
    Ok(read_state(path)?.run)
}

fn read_state(path: &Path) -> Result<StateFile, TrainError> {
    let wrong = |problem: String| TrainError::Checkpoint { path: path.to_owned(), problem };
    let at = path.join(STATE);
    let bytes = fs::read(&at).map_err(|source| TrainError::Io { path: at, source })?;
    let file: StateFile = serde_json::from_slice(&bytes).map_err(|e| wrong(format!("{STATE}: {e}")))?;
    if file.version != VERSION {
        return Err(wrong(format!("it has version {}: expected {VERSION}", file.version)));
    }
    Ok(file)
}

/// Reads a checkpoint into parameters and an optimizer of the same model. `config` is the configuration of the resuming run.
///
/// # Errors
///
/// [`TrainError::Io`]; [`TrainError::Checkpoint`] for another configuration, naming the first setting that differs, for another
/// model, and for a malformed file. Nothing is changed then.
pub fn load(
    path: &Path,
    config: &Value,
    parameters: &mut Parameters,
    optimizer: &mut Optimizer,
) -> Result<RunState, TrainError> {
    load_into(path, config, parameters, optimizer, Ok)
}

/// [`load`] into the memory of an executor, with `write` as the copy.
pub(crate) fn load_into<T: Elements>(
    path: &Path,
    config: &Value,
    parameters: &mut Parameters<T>,
    optimizer: &mut Optimizer<T>,
    write: impl Fn(Vec<f32>) -> Result<T, TrainError>,
) -> Result<RunState, TrainError> {
    let (file, tensors) = read(path, config)?;
    place(path, &file, tensors.into_iter().collect(), parameters, optimizer, write)?;
    Ok(file.run)
}

/// Opens a checkpoint of a run with this configuration: its state, and its tensors on disk.
pub(crate) fn open(path: &Path, config: &Value) -> Result<(StateFile, Tensors), TrainError> {
    let wrong = |problem: String| TrainError::Checkpoint { path: path.to_owned(), problem };
    let file = read_state(path)?;
    if let Some((setting, was, is)) = difference("", &file.run.config, config) {
        return Err(wrong(format!("it belongs to another run: {setting} was {was}, and is {is} now")));
    }
    Ok((file, Tensors::open(path)?))
}

/// Reads the state and the tensors of a checkpoint of a run with this configuration.
pub(crate) fn read(path: &Path, config: &Value) -> Result<(StateFile, Named), TrainError> {
    let (file, mut tensors) = open(path, config)?;
    let names = tensors.lens();
    let read = |(name, _): (String, usize)| Ok::<_, TrainError>((name.clone(), tensors.read(&name)?));
    Ok((file, names.into_iter().map(read).collect::<Result<_, _>>()?))
}

/// Restores the tensors of a checkpoint, all or none. An optimizer takes the moments for which it has buffers.
pub(crate) fn place<T: Elements>(
    path: &Path,
    file: &StateFile,
    mut tensors: HashMap<String, Vec<f32>>,
    parameters: &mut Parameters<T>,
    optimizer: &mut Optimizer<T>,
    write: impl Fn(Vec<f32>) -> Result<T, TrainError>,
) -> Result<(), TrainError> {
    let wrong = |problem: String| TrainError::Checkpoint { path: path.to_owned(), problem };
    let mut values = |part: &str, name: &str, len: usize| -> Result<T, TrainError> {
        let name = format!("{part}.{name}");
        let values = tensors.remove(&name).ok_or_else(|| wrong(format!("{name} is missing")))?;
        if values.len() != len {
            return Err(wrong(format!("{name} has {} numbers: expected {len}", values.len())));
        }
        write(values)
    };
    let (mut weights, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
    for (place, parameter) in parameters.all().iter().enumerate() {
        let (name, len) = (parameter.key(), parameter.values.elements());
        weights.push(values("weight", &name, len)?);
        let mut mean =
            |part: &str, of: &Option<T>| of.is_some().then(|| values(part, &name, len)).transpose();
        first.push(mean("first", &optimizer.first[place])?);
        second.push(mean("second", &optimizer.second[place])?);
    }
    for (parameter, values) in parameters.all_mut().iter_mut().zip(weights) {
        parameter.values = values;
    }
    optimizer.restore(file.optimizer_steps, first, second);
    Ok(())
}

/// Names and values of all tensors.
pub(crate) fn tensors_of<T: Elements>(
    parameters: &Parameters<T>,
    optimizer: &Optimizer<T>,
    read: impl Fn(&T) -> Result<Vec<f32>, TrainError>,
) -> Result<Named, TrainError> {
    let mut all = Vec::new();
    for (place, parameter) in parameters.all().iter().enumerate() {
        for (part, tensor) in [
            ("weight", Some(&parameter.values)),
            ("first", optimizer.first[place].as_ref()),
            ("second", optimizer.second[place].as_ref()),
        ] {
            let Some(tensor) = tensor else { continue };
            all.push((format!("{part}.{}", parameter.key()), read(tensor)?));
        }
    }
    Ok(all)
}

/// Values with their shape, converted to bytes when they are written.
struct Numbers<'v>(&'v [f32], [usize; 1]);

impl View for Numbers<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.1
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.0.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()
    }

    fn data_len(&self) -> usize {
        4 * self.0.len()
    }
}

/// Steps of all checkpoints, in ascending order.
fn steps(dir: &Path) -> Result<Vec<usize>, TrainError> {
    let io = |source| TrainError::Io { path: dir.to_owned(), source };
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let step: Option<usize> =
            name.to_str().and_then(|name| name.strip_prefix("step-")).and_then(|step| step.parse().ok());
        all.extend(step);
    }
    all.sort_unstable();
    Ok(all)
}

fn remove(path: &Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(TrainError::Io { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Makes a rename last.
fn sync(dir: &Path) -> Result<(), TrainError> {
    // Not every system can open directories as files.
    if cfg!(unix) {
        let fail = |source| TrainError::Io { path: dir.to_owned(), source };
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(fail)?;
    }
    Ok(())
}

/// The path of the first value that differs, and both values.
pub(crate) fn difference(at: &str, old: &Value, new: &Value) -> Option<(String, Value, Value)> {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            keys.into_iter().find_map(|key| {
                let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                let of =
                    |object: &serde_json::Map<String, Value>| object.get(key).cloned().unwrap_or(Value::Null);
                difference(&path, &of(a), &of(b))
            })
        }
        _ if old == new => None,
        _ => Some((at.to_owned(), old.clone(), new.clone())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trike_nn::DecoderSpec;

    use super::*;
    use crate::OptimizerConfig;

    fn run(seed: u64) -> (Parameters, Optimizer) {
        let spec = DecoderSpec { tied_head: true, ..DecoderSpec::llama(8, 1, 2, 10) };
        let parameters = Parameters::random(&spec, seed).expect("parameters");
        let config = OptimizerConfig { kind: crate::OptimizerKind::Muon, ..OptimizerConfig::default() };
        let mut optimizer = Optimizer::new(config, &parameters).expect("an optimizer");
        let cpu = trike_cpu::Cpu::new(1).expect("a cpu");
        let (mut after, gradients) = (parameters.clone(), parameters.zeros());
        let factors = crate::ScheduleFactors { rate: 1.0, decay: 1.0 };
        optimizer.step(&cpu, &mut after, &gradients, factors).expect("a step");
        (after, optimizer)
    }

    const ONE: Keep = Keep { newest: 1, also: None };

    fn state(step: usize) -> RunState {
        let position = Position { epoch: 1, document: 2, offset: 3 };
        let config = json!({"rate": 0.5, "data": {"seed": 1}});
        RunState { step, position, config, memory: json!([step]), loss_scaler: None }
    }

    #[test]
    fn a_checkpoint_brings_everything_back() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().join("run");
        assert_eq!(newest(&dir).expect("no error"), None);
        let (parameters, optimizer) = run(1);
        for step in [1, 2, 5, 10] {
            let keep = Keep { newest: 2, also: Some(1) };
            save(&dir, &state(step), &parameters, &optimizer, keep).expect("it is written");
        }
        let found = newest(&dir).expect("no error").expect("a checkpoint");
        assert_eq!((found.clone(), steps(&dir).expect("steps")), (folder(&dir, 10), vec![1, 5, 10]));
        assert_eq!(peek(&found).expect("it is read"), state(10));
        let (mut other, mut of_other) = run(2);
        let back = load(&found, &state(0).config, &mut other, &mut of_other).expect("it is read");
        assert_eq!((back, other, of_other), (state(10), parameters, optimizer));
    }

    /// The default parser of serde_json rounds some floats incorrectly in the last bit.
    #[test]
    fn floats_come_back_to_the_bit() {
        let dir = tempfile::tempdir().expect("a folder");
        let (parameters, optimizer) = run(1);
        let floats: Vec<f64> = (1..2000).map(|i| 1e3 / (f64::from(i) * std::f64::consts::PI)).collect();
        let state = RunState { memory: json!(floats), config: json!({ "rate": floats }), ..state(1) };
        let path = save(dir.path(), &state, &parameters, &optimizer, ONE).expect("it is written");
        assert_eq!(peek(&path).expect("it is read"), state);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let (parameters, optimizer) = run(1);
        let path = save(dir.path(), &state(1), &parameters, &optimizer, ONE).expect("it is written");
        let refused = |config: Value, edit: &dyn Fn()| {
            edit();
            let (before, state) = run(2);
            let (mut other, mut of_other) = (before.clone(), state.clone());
            let error = load(&path, &config, &mut other, &mut of_other).expect_err("another run").to_string();
            assert_eq!((other, of_other), (before, state));
            error
        };
        let changed = refused(json!({"rate": 0.5, "data": {"seed": 2}}), &|| ());
        assert!(changed.contains("data.seed was 1, and is 2 now"), "{changed}");
        let cut =
            refused(state(1).config, &|| fs::write(path.join(TENSORS), b"12345678").expect("it is written"));
        assert!(cut.contains(TENSORS), "{cut}");
        let gone = refused(state(1).config, &|| fs::write(path.join(STATE), b"{}").expect("it is written"));
        assert!(gone.contains(STATE), "{gone}");
    }

    /// A directory that cannot be a rename target simulates a full disk: the previous checkpoint stays.
    #[test]
    fn a_failure_leaves_the_checkpoint_before() {
        let dir = tempfile::tempdir().expect("a folder");
        let (parameters, optimizer) = run(1);
        let path = save(dir.path(), &state(1), &parameters, &optimizer, ONE).expect("it is written");
        fs::write(folder(dir.path(), 2), b"in the way").expect("it is written");
        assert!(save(dir.path(), &state(2), &parameters, &optimizer, ONE).is_err());
        assert!(!dir.path().join(".step-00000002").exists());
        let (mut other, mut of_other) = run(2);
        load(&path, &state(1).config, &mut other, &mut of_other).expect("it is still there");
    }
}

//! A model on several ranks: agreement on options, memory plans, and loading.

use std::rc::Rc;
use std::{fmt, ops::Range};

use trike_comm::{Communicator, agree, rank_places};
use trike_cpu::{Cpu, MemoryLimit, free_memory};
use trike_nn::{
    ActivationPolicy, ActivationPrecision, CpuBackend, Division, Eviction, KeySelector, KvPrecisions, KvSpec,
    MemoryPlan, NnError, PromptKeys, RankBackend, StageDevice, StagePlan,
};

use super::{host, plan};
use crate::{HeadPrecision, LanguageModel, LlmError, LoadOptions, ModelFile, generate::PROMPT_STEP};

/// How a model is divided between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelParallel {
    /// Every rank has a row shard of each matrix and some of the heads.
    Tensor,
    /// Every rank has some consecutive layers.
    Pipeline,
}

impl ModelParallel {
    /// Both, in the order of command-line help.
    pub const ALL: [Self; 2] = [Self::Tensor, Self::Pipeline];

    /// `tensor` or `pipeline`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Pipeline => "pipeline",
        }
    }
}

/// The part of a model on a rank, its required memory and its free memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankPlan {
    /// Host name; empty if the system does not report one.
    pub host: String,
    /// Number of ranks on the same CPUs of that host, this one included: each should use that fraction of the CPUs for its threads.
    pub sharing: usize,
    /// Layers that it holds whole or in part.
    pub layers: Range<usize>,
    /// Required bytes. A rank with shards of matrices reads each matrix whole before taking its shard; the largest counts as
    /// activations if it exceeds them.
    pub plan: MemoryPlan,
    /// Bytes of the weights that are mapped from files in the layout of the kernels, whose pages the system can evict.
    pub mapped: u64,
    /// Free bytes per rank: those of the host, divided by its ranks. `None` if the system does not report them.
    pub available: Option<u64>,
}

impl fmt::Display for RankPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes ({})", self.plan.total(), self.plan)?;
        match self.available {
            Some(available) => write!(f, ", {available} are free"),
            None => Ok(()),
        }
    }
}

/// A model on several ranks, each with its part on the CPU.
pub type RankModel<C> = LanguageModel<RankBackend<CpuBackend, C>>;

/// The division of a model between the ranks of a run, checked before anything is loaded.
#[derive(Clone, Debug)]
pub struct RankPlans {
    division: Division,
    sequence: KvSpec,
    ranks: Vec<RankPlan>,
}

impl RankPlans {
    /// Divides a model between the ranks of `comm`; collective. Layers of a pipeline are divided in proportion to the free memory.
    /// [`LoadOptions::sequence`] of rank 0 applies to all.
    ///
    /// The ranks compare their versions, their options and their models: files up to 1 GiB byte by byte, larger ones in 4096
    /// samples of 64 KiB.
    ///
    /// # Errors
    ///
    /// On every rank: [`CommError::Differs`](trike_comm::CommError::Differs) if these differ, [`NnError::Spec`] if the model cannot
    /// be divided between that number of ranks, [`LlmError::RankMemory`] if a rank has too little memory. [`LlmError::Io`], and
    /// errors of messages.
    pub fn new<C: Communicator + ?Sized>(
        comm: &C,
        file: &ModelFile,
        options: &LoadOptions,
        parallel: ModelParallel,
    ) -> Result<Self, LlmError> {
        let same = |what: &str, text: &str| agree(comm, what, text).map_err(NnError::from);
        same("version", env!("CARGO_PKG_VERSION"))?;
        same("division", parallel.name())?;
        same("options", &described(file, options))?;
        same("model", &file.fingerprint()?)?;
        let sequence = shared_sequence(comm, options.sequence_of(file))?;
        let machines = machines(comm)?;
        let ranks = machines.len();
        let spec = &file.config().spec;
        let division = match parallel {
            ModelParallel::Tensor => Division::tensor(spec, ranks)?,
            ModelParallel::Pipeline if ranks > spec.layers => {
                return Err(NnError::Spec {
                    field: "ranks",
                    rule: "must be at most the number of layers",
                    got: format!("{ranks} for {} layers", spec.layers),
                }
                .into());
            }
            ModelParallel::Pipeline => {
                Division::pipeline(spec, &layers_of(file, options, &sequence, &machines)?)?
            }
        };
        let planned = |(rank, machine): (usize, &Machine)| {
            let part = plan::rank_weights(file, options, &division, rank)?;
            let (cached, layers) = (division.cached(rank), division.layers(rank));
            let mut plan =
                MemoryPlan::of_layers(&cached, layers.clone(), part.weights, &sequence, PROMPT_STEP);
            plan.scratch = plan.scratch.max(part.largest_divided);
            let Machine { host, sharing, available } = machine.clone();
            Ok(RankPlan { host, sharing, layers, plan, mapped: part.mapped, available })
        };
        let ranks = machines.iter().enumerate().map(planned).collect::<Result<Vec<_>, LlmError>>()?;
        let lacks = |rank: &RankPlan| {
            let free: Vec<_> = rank.available.map(|free| (MemoryLimit::Machine, free)).into_iter().collect();
            host::check(&rank.plan, rank.mapped, &free).is_err()
        };
        match ranks.iter().any(lacks) {
            true => Err(LlmError::RankMemory { ranks }),
            false => Ok(Self { division, sequence, ranks }),
        }
    }

    /// The division.
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// The KV cache included in the plans.
    pub fn sequence(&self) -> KvSpec {
        self.sequence
    }

    /// The plans of all ranks.
    pub fn ranks(&self) -> &[RankPlan] {
        &self.ranks
    }

    /// Loads the part of this rank; only rank 0 has a tokenizer. `progress` is called with the weights loaded and the weights of the
    /// whole model.
    ///
    /// # Errors
    ///
    /// As [`LanguageModel::load_on`].
    pub fn load<C: Communicator>(
        &self,
        comm: Rc<C>,
        file: &ModelFile,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<RankModel<C>, LlmError> {
        let cpu = options.cpu.clone().map_or_else(|| Cpu::new(0), Ok)?;
        let inner = CpuBackend::new(cpu, options.activations_of(file)).with_layout(options.layout);
        let is_first = comm.rank() == 0;
        let backend = RankBackend::new(inner, comm, &file.config().spec, self.division.clone())?;
        if is_first {
            return LanguageModel::load_on(backend, file, options, progress);
        }
        file.check_all_read()?;
        LanguageModel::from_source(backend, file, None, options.head, progress)
    }
}

/// The options that affect a rank's results.
fn described(file: &ModelFile, options: &LoadOptions) -> String {
    let activations = match options.activations_of(file) {
        ActivationPolicy::Int8 => "int8".to_owned(),
        ActivationPolicy::Fixed(ActivationPrecision::F32) => "f32".to_owned(),
        ActivationPolicy::Fixed(ActivationPrecision::Int16) => "int16".to_owned(),
        ActivationPolicy::Fixed(ActivationPrecision::Int8PerToken) => "int8-token".to_owned(),
        ActivationPolicy::Fixed(ActivationPrecision::Int8PerGroup(size)) => {
            format!("int8-group{}", size.get())
        }
    };
    let head = match options.head {
        HeadPrecision::Auto => "auto",
        HeadPrecision::AsStored => "stored",
        HeadPrecision::Int8 => "int8",
    };
    let layout = options.layout.map_or("auto", |layout| layout.name());
    format!("activations {activations}, head {head}, layout {layout}")
}

/// Broadcasts the KV cache of rank 0.
fn shared_sequence<C: Communicator + ?Sized>(comm: &C, own: KvSpec) -> Result<KvSpec, LlmError> {
    let KvSpec { precision, capacity, window, keys, prompt_keys, eviction } = own;
    let top_k = keys.top_k().unwrap_or(0);
    let (window, share) = (window.unwrap_or(0), prompt_keys.thousandths());
    let eviction = eviction.name();
    let text = format!("{precision} {capacity} {window} {top_k} {share} {eviction}");
    let first = (comm.rank() == 0).then_some(text.as_bytes());
    // The precisions of 128 layers are less than 700 bytes.
    let message = comm.broadcast(0, first, 1 << 10).map_err(NnError::from)?;
    let wrong = || NnError::Notice { got: message.len() };
    let text = std::str::from_utf8(&message).map_err(|_| wrong())?;
    let [precision, capacity, window, top_k, share, eviction] = text.split(' ').collect::<Vec<_>>()[..]
    else {
        return Err(wrong().into());
    };
    let precision: KvPrecisions = precision.parse().map_err(|_| wrong())?;
    let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
    let window = Some(number(window)?).filter(|&window| window > 0);
    let keys = KeySelector::signs(number(top_k)?).unwrap_or_default();
    let share = share.parse::<u16>().map_err(|_| wrong())?;
    let prompt_keys = PromptKeys::of_thousandths(share).ok_or_else(wrong)?;
    let eviction = Eviction::named(eviction).ok_or_else(wrong)?;
    Ok(KvSpec { precision, capacity: number(capacity)?, window, keys, prompt_keys, eviction })
}

/// The host of a rank.
#[derive(Clone)]
struct Machine {
    host: String,
    /// Number of ranks on the same CPUs.
    sharing: usize,
    /// Free bytes for each rank there.
    available: Option<u64>,
}

/// The host of every rank.
fn machines<C: Communicator + ?Sized>(comm: &C) -> Result<Vec<Machine>, LlmError> {
    let places = rank_places(comm).map_err(NnError::from)?;
    let free = free_memory().into_iter().map(|(_, bytes)| bytes).min();
    let free = free.map_or_else(String::new, |free| free.to_string());
    let all = comm.all_gather(free.as_bytes(), 1 << 10).map_err(NnError::from)?;
    let each = places.into_iter().zip(all).map(|(place, free)| {
        let free: Option<u64> = String::from_utf8_lossy(&free).parse().ok();
        let available = free.map(|free| free / place.on_host.max(1) as u64);
        Machine { host: place.host, sharing: place.sharing, available }
    });
    Ok(each.collect())
}

/// The number of layers of each rank of a pipeline.
fn layers_of(
    file: &ModelFile,
    options: &LoadOptions,
    sequence: &KvSpec,
    machines: &[Machine],
) -> Result<Vec<usize>, LlmError> {
    let weights = plan::layer_weights(file, options, machines.len() > 1)?;
    let device = |(rank, machine): (usize, &Machine)| StageDevice {
        name: format!("rank {rank}"),
        available: machine.available,
        kv: *sequence,
    };
    let devices: Vec<StageDevice> = machines.iter().enumerate().map(device).collect();
    let counts = |stages: Vec<StagePlan>| stages.into_iter().map(|stage| stage.layers.len()).collect();
    match weights.split(&file.config().spec, PROMPT_STEP, &devices) {
        Ok(stages) => Ok(counts(stages)),
        // The check with the plans of all ranks, which excludes mapped weights, decides later.
        Err(NnError::SplitMemory { stages }) => Ok(counts(stages)),
        Err(error) => Err(error.into()),
    }
}

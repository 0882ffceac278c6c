//! The configuration of a run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use trike_autodiff::{BitLinearSpec, TernarizeSpec, TernaryScale};
use trike_core::{Bounds, OptionError};
use trike_llm::DeviceChoice;
use trike_trit::{Granularity, GroupSize};

use super::names::{CodecName, Dataset, Parallel, ScaleKind, Scheduler, Sharing, Whole, optimizer_name};
use crate::data::BatchConfig;
use crate::{
    OptimizerConfig, OptimizerKind, OuterConfig, Precision, PrecisionPolicy, RanksConfig, Schedule,
    ScheduleShape, TernaryPolicy, TrainError, TrainerConfig,
};

/// The configuration of a run: model, data, optimization and output. In TOML, YAML or JSON, with axolotl's names where it has the
/// setting.
///
/// ```
/// use trike_train::run::RunConfig;
///
/// let config = RunConfig::parse(
///     r#"
///     base_model = "dense"
///     output_dir = "ternary"
///     datasets = [{ path = "stories.txt" }]
///     max_steps = 1000
///     "#,
/// )?;
/// assert_eq!((config.planes, config.micro_batch_size), (1, 1));
/// let error = RunConfig::parse("base_model = 'dense'\nlearnig_rate = 0.1").unwrap_err().to_string();
/// assert!(error.contains("learnig_rate"), "{error}");
/// # Ok::<(), trike_train::TrainError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// The model whose weights training starts from.
    pub base_model: Option<PathBuf>,
    /// A HuggingFace `config.json`: the architecture of a model with random initial weights.
    pub base_model_config: Option<PathBuf>,
    /// A tokenizer file instead of the base model's own.
    pub tokenizer: Option<PathBuf>,
    /// A model to distill from; `"none"` for none. By default the base model, if weights become ternary.
    pub teacher: Option<PathBuf>,
    /// Weight of the cross-entropy in the loss, relative to the divergence from the teacher.
    pub kd_ce_alpha: f32,
    /// Ternary planes of the matrices of the blocks: 1, or 0 for a dense model.
    pub planes: usize,
    /// Weights per scale.
    pub group: Sharing,
    /// How scales are computed.
    pub scale: ScaleKind,
    /// Magnitude, in units of the scale, above which weights get no gradient; 0 disables this.
    pub clip: f32,
    /// Whether activations of ternary layers are int8, as in inference.
    pub int8_activations: bool,
    /// Fraction of the steps in which weights are interpolated from dense to ternary.
    pub lambda_ratio: f32,
    /// Files of training data.
    pub datasets: Vec<Dataset>,
    /// Number of documents that the teacher generates in addition to the data. By default, if the data are texts, enough for the
    /// run to make about four passes over all documents.
    pub teacher_documents: Option<usize>,
    /// Fraction of the documents that is held out for evaluation.
    pub val_set_size: f64,
    /// Tokens per row; at most the context of the model.
    pub sequence_len: Option<usize>,
    /// Whether documents are packed into rows.
    pub sample_packing: bool,
    /// Rows of a batch.
    pub micro_batch_size: usize,
    /// Batches of a step.
    pub gradient_accumulation_steps: usize,
    /// Steps of the run; or:
    pub max_steps: Option<usize>,
    /// Passes through the data; or:
    pub num_epochs: Option<f64>,
    /// Minutes of the run, excluding the teacher's generation; the number of steps is computed at the start.
    pub minutes: Option<f64>,
    /// The optimizer.
    #[serde(with = "optimizer_name")]
    pub optimizer: OptimizerKind,
    /// Learning rate.
    pub learning_rate: f32,
    /// Shape of the learning rate schedule.
    pub lr_scheduler: Scheduler,
    /// Final learning rate of a cosine, as a fraction of the peak.
    pub cosine_min_lr_ratio: f32,
    /// Fraction of the steps in the decay (`wsd`) or in the first stage (`two_stage`).
    pub lr_decay_ratio: f32,
    /// Warm-up steps.
    pub warmup_steps: Option<usize>,
    /// Warm-up steps as a fraction of all steps.
    pub warmup_ratio: f32,
    /// Weight decay.
    pub weight_decay: f32,
    /// Maximum global gradient norm; 0 disables clipping.
    pub max_grad_norm: f32,
    /// Decay rate of AdamW's first moment.
    pub adam_beta1: f32,
    /// Decay rate of AdamW's second moment.
    pub adam_beta2: f32,
    /// AdamW's epsilon.
    pub adam_epsilon: f32,
    /// Decay of Muon's momentum.
    pub muon_momentum: f32,
    /// Blocks per segment of gradient checkpointing: 1 keeps only the input of every block, 0 keeps all activations.
    pub gradient_checkpointing: usize,
    /// Whether operands of matrix products are rounded to bf16 in training passes, which is faster on a CPU with AVX-512 BF16.
    /// Weights, the optimizer and everything else stay f32. CPU only.
    pub bf16: bool,
    /// The same with f16 and loss scaling, to reproduce the results of hardware without bf16: it is not faster on any CPU. CPU
    /// only.
    pub fp16: bool,
    /// Steps between evaluations; by default ten evaluations per run.
    pub eval_steps: Option<usize>,
    /// Evaluations per epoch, for a run with `num_epochs`.
    pub evals_per_epoch: Option<usize>,
    /// Number of evaluations without improvement after which the run ends; 0 disables this.
    pub early_stopping_patience: usize,
    /// Steps between checkpoints; by default, every evaluation.
    pub save_steps: Option<usize>,
    /// Checkpoints per epoch, for a run with `num_epochs`.
    pub saves_per_epoch: Option<usize>,
    /// Checkpoints that are kept.
    pub save_total_limit: usize,
    /// Steps between log lines.
    pub logging_steps: usize,
    /// Parallelism of a run on several ranks: `data` (rows of a step), `pipeline` (blocks of the model) or `tensor` (rows of every
    /// matrix). A run may resume with another one.
    pub parallel: Parallel,
    /// Compression of the weight changes that ranks exchange: `none` (exact sums of gradients, with the same weights for one to
    /// four ranks), `ternary`, `sign`, `top-k`, `demo`, `low-rank`, `sparse` or `sketch`.
    pub codec: CodecName,
    /// Local steps of each rank between synchronizations of the weights; 1 without a codec means that gradients are summed in every
    /// step.
    pub local_steps: usize,
    /// Factor of the mean weight change, with a codec or local steps.
    pub outer_learning_rate: f32,
    /// Decay of its momentum.
    pub outer_momentum: f32,
    /// The compute device: `cpu`, `auto`, or a runtime of the build with an index, such as `vulkan:0`. A run may resume on another
    /// one.
    pub device: String,
    /// Memory limit in bytes; by default the available memory of the machine or device. A larger run is refused before it starts.
    pub memory_limit: Option<u64>,
    /// Seed of the document order and of random weights.
    pub seed: u64,
    /// The output directory.
    pub output_dir: PathBuf,
}

impl Default for RunConfig {
    fn default() -> Self {
        // Best values for one plane from a dense model that is also the teacher.
        let trainer = TrainerConfig::default();
        let optimizer = trainer.optimizer;
        Self {
            base_model: None,
            base_model_config: None,
            tokenizer: None,
            teacher: None,
            kd_ce_alpha: trainer.text,
            planes: 1,
            group: Sharing::Group(32),
            scale: ScaleKind::AbsMean,
            clip: 0.0,
            int8_activations: true,
            lambda_ratio: trainer.lambda,
            datasets: Vec::new(),
            teacher_documents: None,
            val_set_size: 0.05,
            sequence_len: None,
            sample_packing: true,
            micro_batch_size: 1,
            gradient_accumulation_steps: trainer.accumulation,
            max_steps: None,
            num_epochs: None,
            minutes: None,
            optimizer: optimizer.kind,
            learning_rate: optimizer.learning_rate,
            lr_scheduler: Scheduler::Cosine,
            cosine_min_lr_ratio: 0.01,
            lr_decay_ratio: 0.5,
            warmup_steps: None,
            warmup_ratio: 0.02,
            weight_decay: optimizer.weight_decay,
            max_grad_norm: optimizer.max_grad_norm,
            adam_beta1: optimizer.beta1,
            adam_beta2: optimizer.beta2,
            adam_epsilon: optimizer.epsilon,
            muon_momentum: optimizer.momentum,
            gradient_checkpointing: 0,
            bf16: false,
            fp16: false,
            eval_steps: None,
            evals_per_epoch: None,
            early_stopping_patience: 0,
            save_steps: None,
            saves_per_epoch: None,
            save_total_limit: 2,
            logging_steps: 10,
            parallel: Parallel::Data,
            codec: CodecName::None,
            local_steps: 1,
            outer_learning_rate: OuterConfig::default().learning_rate,
            outer_momentum: OuterConfig::default().momentum,
            device: "cpu".to_owned(),
            memory_limit: None,
            seed: 0,
            output_dir: PathBuf::new(),
        }
    }
}

impl RunConfig {
    /// The configuration as TOML.
    ///
    /// # Errors
    ///
    /// [`TrainError::Config`] for a path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, TrainError> {
        toml::to_string(self).map_err(|e| TrainError::Config { problem: e.to_string() })
    }

    /// Whether weights become ternary.
    #[must_use]
    pub fn is_ternary(&self) -> bool {
        self.planes > 0
    }

    /// The device that computes.
    ///
    /// # Errors
    ///
    /// [`TrainError::Config`] for an unknown device name, and for several devices.
    pub fn device(&self) -> Result<DeviceChoice, TrainError> {
        let wrong = |problem: String| TrainError::Config { problem: format!("device: {problem}") };
        match self.device.parse::<DeviceChoice>() {
            Ok(DeviceChoice::Several(_)) => {
                Err(wrong(format!("expected a single device, got {}", self.device)))
            }
            found => found.map_err(|e| wrong(e.to_string())),
        }
    }

    /// Checks everything that needs no files.
    ///
    /// # Errors
    ///
    /// [`TrainError::Config`] for settings that are missing or exclude each other, [`TrainError::Option`] for numbers out of range.
    pub fn validate(&self) -> Result<(), TrainError> {
        let wrong = |problem: &str| Err(TrainError::Config { problem: problem.to_owned() });
        if self.base_model.is_some() == self.base_model_config.is_some() {
            return wrong("expected either base_model or base_model_config");
        }
        if self.base_model_config.is_some() && self.tokenizer.is_none() {
            return wrong("tokenizer is missing: base_model_config has none");
        }
        if self.datasets.is_empty() {
            return wrong("datasets is missing: expected at least one file");
        }
        if self.output_dir.as_os_str().is_empty() {
            return wrong("output_dir is missing");
        }
        let lengths = [self.max_steps.is_some(), self.num_epochs.is_some(), self.minutes.is_some()];
        if lengths.iter().filter(|&&given| given).count() != 1 {
            return wrong("expected one of max_steps, num_epochs and minutes");
        }
        for (field, count) in [
            ("micro_batch_size", self.micro_batch_size),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps),
        ] {
            OptionError::check(field, Bounds::at_least(1usize), count)?;
        }
        OptionError::check("max_steps", Bounds::at_least(1usize), self.max_steps.unwrap_or(1))?;
        OptionError::check("planes", Bounds::at_least(0usize).at_most(1usize), self.planes)?;
        OptionError::check("clip", Bounds::at_least(0.0).at_most(1e6), self.clip)?;
        OptionError::check("val_set_size", Bounds::at_least(0.0).at_most(0.9), self.val_set_size)?;
        OptionError::check("warmup_ratio", Bounds::at_least(0.0).at_most(1.0), self.warmup_ratio)?;
        OptionError::check("logging_steps", Bounds::at_least(1usize), self.logging_steps)?;
        OptionError::check("save_total_limit", Bounds::at_least(1usize), self.save_total_limit)?;
        for (field, steps, per_epoch, number) in [
            ("eval_steps", self.eval_steps, "evals_per_epoch", self.evals_per_epoch),
            ("save_steps", self.save_steps, "saves_per_epoch", self.saves_per_epoch),
        ] {
            OptionError::check(field, Bounds::at_least(1usize), steps.unwrap_or(1))?;
            OptionError::check(per_epoch, Bounds::at_least(1usize), number.unwrap_or(1))?;
            if number.is_some() && (steps.is_some() || self.num_epochs.is_none()) {
                return Err(TrainError::Config {
                    problem: format!("{per_epoch} is for a run with num_epochs and without {field}"),
                });
            }
        }
        for (field, value) in [("num_epochs", self.num_epochs), ("minutes", self.minutes)] {
            OptionError::check(field, Bounds::over(0.0).at_most(1e6), value.unwrap_or(1.0))?;
        }
        self.granularity()?;
        self.device()?;
        self.trainer(1)?.validate()?;
        self.ranks().validate()?;
        let sends_changes = self.codec != CodecName::None || self.local_steps > 1;
        let divided = match self.parallel {
            Parallel::Data => None,
            Parallel::Pipeline => Some("a pipeline"),
            Parallel::Tensor => Some("tensor parallelism"),
        };
        if let (Some(divided), true) = (divided, sends_changes) {
            return Err(TrainError::Config {
                problem: format!(
                    "{divided} with codec {:?} and local_steps {}: expected neither, they are for parallel = \"data\"",
                    self.codec, self.local_steps
                ),
            });
        }
        Ok(())
    }

    /// Steps between evaluations and between checkpoints of a run of `steps` steps, if set.
    pub(super) fn intervals(&self, steps: usize) -> [Option<usize>; 2] {
        let of = |number: Option<usize>| {
            let per_run = number? as f64 * self.num_epochs?;
            Some(((steps as f64 / per_run).ceil() as usize).max(1))
        };
        [self.eval_steps.or(of(self.evals_per_epoch)), self.save_steps.or(of(self.saves_per_epoch))]
    }

    /// Tokens per step with batches of these sizes.
    pub(super) fn tokens_per_step(&self, batches: &BatchConfig) -> Result<usize, TrainError> {
        let factors = [batches.rows, batches.length, self.gradient_accumulation_steps];
        factors.into_iter().try_fold(1usize, usize::checked_mul).ok_or_else(|| TrainError::Config {
            problem: format!(
                "a step of micro_batch_size {} x sequence_len {} x gradient_accumulation_steps {} tokens: expected at most {}",
                batches.rows,
                batches.length,
                self.gradient_accumulation_steps,
                usize::MAX
            ),
        })
    }

    /// Settings of the exchange between ranks.
    #[must_use]
    pub fn ranks(&self) -> RanksConfig {
        let outer = OuterConfig { learning_rate: self.outer_learning_rate, momentum: self.outer_momentum };
        RanksConfig { codec: self.codec.config(), local_steps: self.local_steps, outer }
    }

    fn granularity(&self) -> Result<Granularity, TrainError> {
        match self.group {
            Sharing::Named(Whole::Row) => Ok(Granularity::Row),
            Sharing::Named(Whole::Tensor) => Ok(Granularity::Tensor),
            Sharing::Group(32) => Ok(Granularity::Group(GroupSize::G32)),
            Sharing::Group(64) => Ok(Granularity::Group(GroupSize::G64)),
            Sharing::Group(128) => Ok(Granularity::Group(GroupSize::G128)),
            Sharing::Group(256) => Ok(Granularity::Group(GroupSize::G256)),
            Sharing::Group(got) => Err(TrainError::Config {
                problem: format!("group is {got}: expected 32, 64, 128, 256, \"row\" or \"tensor\""),
            }),
        }
    }

    /// The rounding of weights and activations.
    ///
    /// # Errors
    ///
    /// [`TrainError::Config`] for an unknown group.
    pub fn policy(&self) -> Result<TernaryPolicy, TrainError> {
        if !self.is_ternary() {
            return Ok(TernaryPolicy::DENSE);
        }
        let scale = match self.scale {
            ScaleKind::LeastSquares => TernaryScale::LeastSquares,
            ScaleKind::AbsMean => TernaryScale::AbsMean,
        };
        let clip = if self.clip > 0.0 { self.clip } else { f32::INFINITY };
        let granularity = self.granularity()?;
        let weights =
            TernarizeSpec::default().with_granularity(granularity).with_scale(scale).with_clip(clip);
        // The default of inference.
        let activation_group = match granularity {
            Granularity::Group(size) => Some(size),
            Granularity::Row | Granularity::Tensor => None,
        };
        let blocks = BitLinearSpec { weights, int8_activations: self.int8_activations, activation_group };
        Ok(TernaryPolicy { blocks: Some(blocks), int8_embedding: true })
    }

    /// Settings of the training loop for a run of `steps` steps.
    pub(super) fn trainer(&self, steps: usize) -> Result<TrainerConfig, TrainError> {
        let warmup = self.warmup_steps.unwrap_or((self.warmup_ratio * steps as f32).ceil() as usize);
        let shape = match self.lr_scheduler {
            Scheduler::Cosine => ScheduleShape::Cosine { end: self.cosine_min_lr_ratio },
            Scheduler::Constant => ScheduleShape::Constant,
            Scheduler::Linear => ScheduleShape::Linear,
            Scheduler::Wsd => ScheduleShape::Wsd { decay: self.lr_decay_ratio },
            Scheduler::TwoStage => ScheduleShape::TwoStage { first: self.lr_decay_ratio },
        };
        Ok(TrainerConfig {
            steps,
            accumulation: self.gradient_accumulation_steps,
            optimizer: OptimizerConfig {
                kind: self.optimizer,
                learning_rate: self.learning_rate,
                beta1: self.adam_beta1,
                beta2: self.adam_beta2,
                epsilon: self.adam_epsilon,
                weight_decay: self.weight_decay,
                momentum: self.muon_momentum,
                max_grad_norm: self.max_grad_norm,
            },
            schedule: Schedule { warmup, shape },
            lambda: if self.is_ternary() { self.lambda_ratio } else { 0.0 },
            text: self.kd_ce_alpha,
            checkpoint: Some(self.gradient_checkpointing).filter(|&blocks| blocks > 0),
            precision: PrecisionPolicy::all(match (self.bf16, self.fp16) {
                (true, true) => {
                    let problem = "expected one of bf16 and fp16, got both".to_owned();
                    return Err(TrainError::Config { problem });
                }
                (true, false) => Precision::Bf16,
                (false, true) => Precision::F16,
                (false, false) => Precision::F32,
            }),
        })
    }

    /// Batch sizes for a model with this context length.
    pub(super) fn batches(&self, context: usize) -> Result<BatchConfig, TrainError> {
        let length = self.sequence_len.unwrap_or(context.min(512));
        OptionError::check("sequence_len", Bounds::at_least(2usize).at_most(context), length)?;
        Ok(BatchConfig { rows: self.micro_batch_size, length, packed: self.sample_packing, seed: self.seed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> RunConfig {
        RunConfig {
            base_model: Some("a".into()),
            datasets: vec![Dataset { path: "b.txt".into(), ..Dataset::default() }],
            output_dir: "c".into(),
            max_steps: Some(10),
            ..RunConfig::default()
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut config = valid();
        config.validate().expect("it is valid");
        for group in [Sharing::Group(32), Sharing::Named(Whole::Row), Sharing::Named(Whole::Tensor)] {
            config.group = group;
            config.optimizer = OptimizerKind::Muon;
            let text = config.to_toml().expect("text");
            assert_eq!(RunConfig::parse(&text).expect("it is read"), config, "{text}");
        }
    }

    #[test]
    fn names_of_axolotl_are_known() {
        let text = "optimizer = 'adamw_torch'\nlr_scheduler = 'constant_with_warmup'\nsave_total_limit = 3";
        let config = RunConfig::parse(text).expect("it is read");
        assert_eq!((config.optimizer, config.lr_scheduler), (OptimizerKind::AdamW, Scheduler::Constant));
    }

    #[test]
    fn intervals_may_be_given_per_epoch() {
        let config = RunConfig { num_epochs: Some(2.0), max_steps: None, ..valid() };
        assert_eq!(config.intervals(100), [None, None]);
        let per_epoch = RunConfig { evals_per_epoch: Some(4), saves_per_epoch: Some(1), ..config };
        per_epoch.validate().expect("it is valid");
        assert_eq!(per_epoch.intervals(100), [Some(13), Some(50)]);
        assert_eq!(per_epoch.intervals(3), [Some(1), Some(2)]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        type Edit = fn(&mut RunConfig);
        let table: [(Edit, &str); 20] = [
            (|c| c.evals_per_epoch = Some(4), "evals_per_epoch is for a run with num_epochs"),
            (
                |c| (c.max_steps, c.num_epochs, c.saves_per_epoch) = (None, Some(1.0), Some(0)),
                "saves_per_epoch is 0",
            ),
            (|c| c.max_steps = Some(0), "max_steps is 0"),
            (|c| c.micro_batch_size = 0, "micro_batch_size is 0"),
            (|c| c.gradient_accumulation_steps = 0, "gradient_accumulation_steps is 0"),
            (|c| c.base_model = None, "base_model"),
            (|c| c.base_model_config = Some("d".into()), "base_model"),
            (|c| (c.base_model, c.base_model_config) = (None, Some("d".into())), "tokenizer"),
            (|c| c.datasets.clear(), "datasets"),
            (|c| c.output_dir = PathBuf::new(), "output_dir"),
            (|c| c.minutes = Some(1.0), "minutes"),
            (|c| c.planes = 2, "planes"),
            (|c| (c.bf16, c.fp16) = (true, true), "fp16"),
            (|c| c.group = Sharing::Group(48), "48"),
            (|c| c.learning_rate = f32::NAN, "learning_rate"),
            (|c| c.eval_steps = Some(0), "eval_steps"),
            (|c| c.device = "cuda:0,cuda:1".to_owned(), "a single device"),
            (|c| (c.parallel, c.codec) = (Parallel::Pipeline, CodecName::Ternary), "codec Ternary"),
            (|c| (c.parallel, c.local_steps) = (Parallel::Pipeline, 4), "local_steps 4"),
            (
                |c| (c.parallel, c.codec) = (Parallel::Tensor, CodecName::Sign),
                "tensor parallelism with codec Sign",
            ),
        ];
        for (edit, named) in table {
            let mut config = valid();
            edit(&mut config);
            let error = config.validate().expect_err(named).to_string();
            assert!(error.contains(named), "{named}: {error}");
        }
        for (text, named) in
            [("max_steps = -1", "max_steps"), ("optimizer = 'lion'", "lion"), ("x", "line 1")]
        {
            let error = RunConfig::parse(text).expect_err(named).to_string();
            assert!(error.contains(named), "{named}: {error}");
        }
    }
}

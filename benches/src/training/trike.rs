//! Trike's trainer.

use anyhow::Result;
use trike_autodiff::BitLinearSpec;
use trike_cpu::Cpu;
use trike_train::data::{BatchConfig, Batches, Documents, Encoder, Position};
use trike_train::{
    OptimizerConfig, Parameters, PrecisionPolicy, Schedule, ScheduleShape, TernaryPolicy, Trainer,
    TrainerConfig,
};

use crate::{Engine, LENGTH, RATE, ROWS, ids, spec};

pub(crate) struct Trike {
    trainer: Trainer<'static>,
    batches: Batches<'static>,
}

impl Trike {
    /// What it reads is never dropped: the program ends with it.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        let cpu: &'static Cpu = Box::leak(Box::new(Cpu::new(threads)?));
        let json = trike_models::TINY.iter().find(|(name, _)| *name == "tokenizer.json");
        let tokenizer =
            trike_text::tokenizer::Tokenizer::from_hf_json_bytes(json.map_or(&[][..], |(_, bytes)| bytes))?;
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("empty.txt");
        std::fs::write(&path, "Once upon a time.")?;
        let rows = ids().chunks(LENGTH + 1).map(<[u32]>::to_vec).collect();
        let documents: &'static Documents = Box::leak(Box::new(Documents::open(&[path])?.with_tokens(rows)?));
        let used: &'static [u32] = Box::leak((1..=ROWS as u32).collect());
        let encoder = Encoder::new(Box::leak(Box::new(tokenizer)), None);
        let config = BatchConfig { rows: ROWS, length: LENGTH, packed: false, seed: 1 };
        let batches = Batches::new(documents, used, encoder, config, Position::default())?;
        let config = TrainerConfig {
            steps: usize::MAX,
            accumulation: 1,
            optimizer: OptimizerConfig {
                learning_rate: RATE as f32,
                weight_decay: 0.0,
                max_grad_norm: 0.0,
                ..OptimizerConfig::default()
            },
            schedule: Schedule { warmup: 0, shape: ScheduleShape::Constant },
            lambda: 0.0,
            text: 1.0,
            checkpoint: None,
            precision: PrecisionPolicy::default(),
        };
        let policy = TernaryPolicy { blocks: Some(BitLinearSpec::default()), int8_embedding: false };
        let trainer = Trainer::new(cpu, config, policy, Parameters::random(&spec(), 1)?, None)?;
        Ok(Self { trainer, batches })
    }
}

impl Engine for Trike {
    fn step(&mut self) -> Result<f64> {
        Ok(self.trainer.step(&mut self.batches)?.loss.mean())
    }
}

//! A small model and its data, for tests of runs.
pub(crate) mod broken;
pub(crate) mod divided;

use trike_autodiff::BitLinearSpec;
use trike_nn::DecoderSpec;
use trike_text::tokenizer::Tokenizer;
use trike_train::data::{BatchConfig, Batches, Documents, Encoder, Position};
use trike_train::{OptimizerConfig, PrecisionPolicy, Schedule, ScheduleShape, TernaryPolicy, TrainerConfig};

/// A few sentences and the tokenizer of the shipped model.
pub(crate) struct Data {
    _dir: tempfile::TempDir,
    pub(crate) documents: Documents,
    pub(crate) used: Vec<u32>,
    pub(crate) tokenizer: Tokenizer,
}

impl Data {
    pub(crate) fn new() -> Self {
        let json =
            trike_models::TINY.iter().find(|(name, _)| *name == "tokenizer.json").expect("a tokenizer").1;
        let tokenizer = Tokenizer::from_hf_json_bytes(json).expect("a tokenizer");
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.txt");
        let animals = ["cat", "dog", "bird", "fish", "frog"];
        let texts =
            animals.map(|animal| format!("Once upon a time there was a {animal}. The {animal} was happy."));
        std::fs::write(&path, texts.join("<|endoftext|>")).expect("it is written");
        let documents = Documents::open(&[path]).expect("documents");
        let used = (0..documents.len() as u32).collect();
        Self { _dir: dir, documents, used, tokenizer }
    }

    pub(crate) fn batches(&self, rows: usize, from: Position) -> Batches<'_> {
        let config = BatchConfig { rows, length: 24, packed: true, seed: 4 };
        Batches::new(&self.documents, &self.used, Encoder::new(&self.tokenizer, None), config, from)
            .expect("batches")
    }

    pub(crate) fn spec(&self) -> DecoderSpec {
        DecoderSpec {
            tied_head: true,
            intermediate: 48,
            kv_heads: 2,
            context: 32,
            ..DecoderSpec::llama(32, 2, 4, self.tokenizer.vocab_size())
        }
    }
}

/// A run of `steps` steps.
pub(crate) fn config(steps: usize) -> TrainerConfig {
    TrainerConfig {
        steps,
        accumulation: 1,
        optimizer: OptimizerConfig { learning_rate: 0.01, ..OptimizerConfig::default() },
        schedule: Schedule { warmup: 3, shape: ScheduleShape::Wsd { decay: 0.3 } },
        lambda: 0.2,
        text: 0.3,
        checkpoint: None,
        precision: PrecisionPolicy::default(),
    }
}

/// One plane, in the format of the trained model.
pub(crate) fn ternary() -> TernaryPolicy {
    TernaryPolicy { blocks: Some(BitLinearSpec::default()), int8_embedding: true }
}

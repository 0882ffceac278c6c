//! Numbers of the bundled model that another implementation computed.

use std::path::Path;

use crate::{npz, story::STORY_END};

/// Numbers of the bundled model, from a forward pass in numpy: `trike-llm/tests/reference/golden.py` makes them.
#[derive(Clone, Debug)]
pub struct Golden {
    /// The greedy continuation of "Once upon a time", with BOS.
    pub ids: Vec<u32>,
    /// The text of `ids`.
    pub text: &'static str,
    /// Logits of the first ids, row by row.
    pub logits: Vec<f32>,
    /// Number of rows of `logits`.
    pub rows: usize,
    /// Four stories that are not of the model's training text.
    pub stories: &'static str,
    /// How many tokens of the stories are predicted, each story after BOS.
    pub tokens: u64,
    /// The mean of -ln of their probabilities.
    pub nats: f64,
}

impl Golden {
    /// Bits per byte of the stories, all of whose bytes are predicted.
    pub fn bits_per_byte(&self) -> f64 {
        let bytes: usize = self.stories.split(STORY_END).map(|story| story.trim().len()).sum();
        self.nats * self.tokens as f64 / std::f64::consts::LN_2 / bytes as f64
    }
}

/// The golden numbers of the bundled model.
pub fn golden() -> Golden {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("data");
    let arrays = npz(&data.join("tiny.npz"));
    Golden {
        ids: arrays["ids"].to_ids(),
        text: include_str!("../../trike-llm/tests/reference/tiny.txt").trim_end(),
        logits: arrays["logits"].to_f32(),
        rows: arrays["logits"].shape[0],
        stories: include_str!("../data/tiny.txt"),
        tokens: u64::from(arrays["tokens"].to_ids()[0]),
        nats: f64::from(arrays["nats"].to_f32()[0]),
    }
}

//! Byte ranges of the tensors of a checkpoint: the header gives their sizes, the version their order.

use super::Llama2cConfig;
use crate::{StoredType, TensorInfo};

/// Size of the whole file, computed before the tensors are listed, because a damaged header may claim thousands of layers.
pub(super) fn size(config: &Llama2cConfig, start: usize) -> u64 {
    let (dim, hidden, layers) = (config.dim, config.hidden_dim, config.n_layers as u64);
    let matrix = |rows, cols| matrix_bytes(config, rows, cols);
    let norms = (2 * layers + 1) * 4 * dim as u64;
    let attention = 2 * matrix(dim, dim) + 2 * matrix(config.kv_dim(), dim);
    let feed_forward = 2 * matrix(hidden, dim) + matrix(dim, hidden);
    let embeddings = if config.shared_classifier { 1 } else { 2 } * matrix(config.vocab_size, dim);
    start as u64 + norms + layers * (attention + feed_forward) + rope_table_bytes(config) + embeddings
}

/// Version 0 contains obsolete tables of cosines and sines: two, each half a head wide.
fn rope_table_bytes(config: &Llama2cConfig) -> u64 {
    if config.version == 0 { (config.seq_len * config.head_dim() * 4) as u64 } else { 0 }
}

fn matrix_bytes(config: &Llama2cConfig, rows: usize, cols: usize) -> u64 {
    let n = (rows * cols) as u64;
    if config.group_size == 0 { 4 * n } else { n + n / config.group_size as u64 * 4 }
}

/// All tensors in file order, and the byte offset of each.
pub(super) fn layout(config: &Llama2cConfig, start: usize) -> (Vec<TensorInfo>, Vec<u64>) {
    let mut list = List { config, tensors: Vec::new(), starts: Vec::new(), end: start as u64 };
    let (dim, hidden, kv_dim) = (config.dim, config.hidden_dim, config.kv_dim());
    let attention = [("q", dim, dim), ("k", kv_dim, dim), ("v", kv_dim, dim), ("o", dim, dim)];
    let feed_forward = [("gate", hidden, dim), ("down", dim, hidden), ("up", hidden, dim)];

    if config.version == 0 {
        list.matrix("model.embed_tokens", config.vocab_size, dim);
    }
    list.norms("input_layernorm");
    if config.version > 0 {
        list.norms("post_attention_layernorm");
        list.norm("model.norm.weight".to_owned());
        list.matrix("model.embed_tokens", config.vocab_size, dim);
    }
    for (name, rows, cols) in attention {
        list.matrices(&format!("self_attn.{name}_proj"), rows, cols);
    }
    if config.version == 0 {
        list.norms("post_attention_layernorm");
    }
    for (name, rows, cols) in feed_forward {
        list.matrices(&format!("mlp.{name}_proj"), rows, cols);
    }
    if config.version == 0 {
        list.norm("model.norm.weight".to_owned());
        list.end += rope_table_bytes(config);
    }
    if !config.shared_classifier {
        list.matrix("lm_head", config.vocab_size, dim);
    }
    debug_assert_eq!(list.end, size(config, start));
    (list.tensors, list.starts)
}

struct List<'a> {
    config: &'a Llama2cConfig,
    tensors: Vec<TensorInfo>,
    starts: Vec<u64>,
    end: u64,
}

impl List<'_> {
    fn push(&mut self, name: String, shape: Vec<usize>, kind: StoredType, bytes: u64) {
        self.tensors.push(TensorInfo { name, shape, kind, bytes });
        self.starts.push(self.end);
        self.end += bytes;
    }

    fn norm(&mut self, name: String) {
        self.push(name, vec![self.config.dim], StoredType::F32, 4 * self.config.dim as u64);
    }

    fn norms(&mut self, name: &str) {
        for layer in 0..self.config.n_layers {
            self.norm(format!("model.layers.{layer}.{name}.weight"));
        }
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) {
        let kind = match self.config.group_size {
            0 => StoredType::F32,
            group => StoredType::Int8 { group: row_group(group, cols) },
        };
        let bytes = matrix_bytes(self.config, rows, cols);
        self.push(format!("{name}.weight"), vec![rows, cols], kind, bytes);
    }

    fn matrices(&mut self, name: &str, rows: usize, cols: usize) {
        for layer in 0..self.config.n_layers {
            self.matrix(&format!("model.layers.{layer}.{name}"), rows, cols);
        }
    }
}

/// The largest group size that divides both the group size of the file and the row length: their greatest common divisor.
fn row_group(group: usize, cols: usize) -> usize {
    let (mut a, mut b) = (group, cols);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::row_group;

    #[test]
    fn groups_that_stay_within_a_row() {
        assert_eq!((row_group(8, 172), row_group(64, 192), row_group(5, 7)), (4, 64, 1));
    }
}

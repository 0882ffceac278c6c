//! Dense llama2.c checkpoints, written without the code that reads them.

use std::{fs, path::Path};

use crate::Rng;

/// Sizes of a checkpoint: the header of the file.
#[derive(Clone, Copy, Debug)]
pub struct Llama2cShape {
    /// Width of the residual stream.
    pub dim: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Number of tokens.
    pub vocab: usize,
    /// Number of positions.
    pub context: usize,
}

impl Llama2cShape {
    /// The shape of stories260K.
    pub const STORIES_260K: Self =
        Self { dim: 64, hidden: 172, layers: 5, heads: 8, kv_heads: 4, vocab: 512, context: 512 };
    /// The shape of stories3M.
    pub const STORIES_3M: Self =
        Self { dim: 192, hidden: 512, layers: 6, heads: 6, kv_heads: 2, vocab: 4096, context: 512 };

    fn kv_dim(self) -> usize {
        self.dim / self.heads * self.kv_heads
    }
}

/// One block: norms, and matrices row by row.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) query: Vec<f32>,
    pub(crate) key: Vec<f32>,
    pub(crate) value: Vec<f32>,
    pub(crate) output: Vec<f32>,
    pub(crate) mlp_norm: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) down: Vec<f32>,
    pub(crate) up: Vec<f32>,
}

type Part = fn(&Block) -> &[f32];
const ATTENTION_NORM: Part = |block| &block.attention_norm;
const MLP_NORM: Part = |block| &block.mlp_norm;
/// In the order of the file.
const MATRICES: [Part; 7] = [
    |block| &block.query,
    |block| &block.key,
    |block| &block.value,
    |block| &block.output,
    |block| &block.gate,
    |block| &block.down,
    |block| &block.up,
];

/// A dense Llama whose head shares the embedding.
#[derive(Clone, Debug)]
pub struct Llama2cCheckpoint {
    shape: Llama2cShape,
    pub(crate) embedding: Vec<f32>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) norm: Vec<f32>,
}

impl Llama2cCheckpoint {
    /// Random weights, each matrix of a size that keeps the scale of its inputs.
    pub fn random(shape: Llama2cShape, seed: u64) -> Self {
        let Llama2cShape { dim, hidden, layers, vocab, .. } = shape;
        let mut rng = Rng::new(seed);
        let norm = |rng: &mut Rng| rng.normals(dim).iter().map(|v| 1.0 + 0.1 * v).collect::<Vec<f32>>();
        let matrix = |rng: &mut Rng, rows: usize, cols: usize| {
            let scale = (cols as f32).powf(-0.5);
            rng.normals(rows * cols).iter().map(|v| scale * v).collect::<Vec<f32>>()
        };
        let kv = shape.kv_dim();
        Self {
            shape,
            embedding: rng.normals(vocab * dim),
            blocks: (0..layers)
                .map(|_| Block {
                    attention_norm: norm(&mut rng),
                    query: matrix(&mut rng, dim, dim),
                    key: matrix(&mut rng, kv, dim),
                    value: matrix(&mut rng, kv, dim),
                    output: matrix(&mut rng, dim, dim),
                    mlp_norm: norm(&mut rng),
                    gate: matrix(&mut rng, hidden, dim),
                    down: matrix(&mut rng, dim, hidden),
                    up: matrix(&mut rng, hidden, dim),
                })
                .collect(),
            norm: norm(&mut rng),
        }
    }

    /// The file of version 0: f32, without a magic.
    pub fn to_f32_bytes(&self) -> Vec<u8> {
        let Llama2cShape { dim, heads, context, .. } = self.shape;
        let mut file = self.numbers();
        let mut put = |values: &[f32]| file.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        put(&self.embedding);
        let [query, key, value, output, gate, down, up] = MATRICES;
        for part in [ATTENTION_NORM, query, key, value, output, MLP_NORM, gate, down, up] {
            self.blocks.iter().for_each(|block| put(part(block)));
        }
        put(&self.norm);
        // The obsolete tables of cosines and sines, which readers skip: numbers that would be noticed.
        put(&vec![f32::NAN; context * (dim / heads)]);
        file
    }

    /// The file of version 2: matrices as int8 in groups of so many, each with the scale that its largest value needs.
    pub fn to_int8_bytes(&self, group: usize) -> Vec<u8> {
        let mut file: Vec<u8> = [0x616b_3432_u32, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
        file.extend(self.numbers());
        file.push(1);
        file.extend((group as i32).to_le_bytes());
        file.resize(256, 0);
        let mut put = |values: &[f32]| file.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        self.blocks.iter().for_each(|block| put(&block.attention_norm));
        self.blocks.iter().for_each(|block| put(&block.mlp_norm));
        put(&self.norm);
        let mut rounded = |values: &[f32]| {
            let scale = |of: &[f32]| of.iter().fold(0f32, |most, v| most.max(v.abs())) / 127.0;
            for of in values.chunks(group) {
                let scale = scale(of);
                file.extend(
                    of.iter().map(|v| if scale == 0.0 { 0 } else { (v / scale).round() as i8 as u8 }),
                );
            }
            file.extend(values.chunks(group).flat_map(|of| scale(of).to_le_bytes()));
        };
        rounded(&self.embedding);
        for part in MATRICES {
            self.blocks.iter().for_each(|block| rounded(part(block)));
        }
        file
    }

    /// Writes the file of version 0.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write_f32(&self, path: &Path) {
        fs::write(path, self.to_f32_bytes()).expect("a checkpoint is written");
    }

    fn numbers(&self) -> Vec<u8> {
        let Llama2cShape { dim, hidden, layers, heads, kv_heads, vocab, context } = self.shape;
        let numbers = [dim, hidden, layers, heads, kv_heads, vocab, context];
        numbers.iter().flat_map(|&n| (n as i32).to_le_bytes()).collect()
    }
}

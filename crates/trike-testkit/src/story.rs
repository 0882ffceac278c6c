//! Stories of a few words, and a dense model that knows which token follows which.

use crate::{
    Rng,
    checkpoint::{Llama2cCheckpoint, Llama2cShape},
    vocabulary::pieces,
};

/// Between two stories of a text.
pub const STORY_END: &str = "<|endoftext|>";

/// What follows each token: the first successor half of the time, the next half of the rest, and so on. Each token is one of the
/// bundled model's vocabulary, with a space in front where a word begins.
const CHAIN: [(&str, &[&str]); 31] = [
    (" Once", &[" upon"]),
    (" upon", &[" a"]),
    (" a", &[" little", " big", " friend", " day", " happy", " time"]),
    (" time", &[",", "."]),
    (",", &[" there", " the", " and"]),
    (" there", &[" was", " with"]),
    (" was", &[" a", " happy", " with"]),
    (" little", &[" g", " friend", " day"]),
    (" big", &[" friend", " day", " g", " time"]),
    (" happy", &[".", " and", ",", " day"]),
    (" g", &["ir"]),
    ("ir", &["l"]),
    ("l", &[" named", ".", " with", " said"]),
    (" friend", &[" named", ".", " said", " was"]),
    (" named", &[" Lily", " Tim"]),
    (" Lily", &[".", " was", " said", " saw", " had", " and"]),
    (" Tim", &[" was", ".", " had", " and", " said"]),
    (".", &[" She", " They", " One", " Lily", " Tim"]),
    (" She", &[" was", " had", " saw", " said"]),
    (" They", &[" play", " said", " had", " saw"]),
    (" the", &[" big", " little", " friend", " day", " time"]),
    (" One", &[" day"]),
    (" day", &[",", ".", " with"]),
    (" saw", &[" the", " a", " Lily"]),
    (" had", &[" a", " the"]),
    (" said", &[",", " the"]),
    (" her", &[" mom", " friend"]),
    (" mom", &[".", " said", ","]),
    (" play", &[" with", "."]),
    (" with", &[" her", " the", " a"]),
    (" and", &[" the", " Lily", " Tim"]),
];

/// How often the successor of this rank follows.
fn share(rank: usize, successors: usize) -> f32 {
    let exponent = if rank + 1 == successors { rank } else { rank + 1 };
    0.5f32.powi(exponent as i32)
}

/// A story that begins with "Once upon a" and ends with a sentence after at least so many tokens: English words, and hardly more.
pub fn story(seed: u64, tokens: usize) -> String {
    story_tokens(seed, tokens).concat().trim_start().to_owned()
}

/// The tokens of [`story`], with `\u{2581}` for a space, as the bundled model's tokenizer must find them.
pub fn story_tokens(seed: u64, tokens: usize) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let mut story = vec![" Once"];
    while story.len() < tokens || story.last() != Some(&".") {
        let last = story.last().expect("a token");
        let (_, next) = CHAIN.iter().find(|(token, _)| token == last).expect("every token is in the chain");
        let mut left = rng.f32_unit();
        let rank = (0..next.len()).find(|&rank| {
            left -= share(rank, next.len());
            left < 0.0
        });
        story.push(next[rank.unwrap_or(0)]);
    }
    story.into_iter().map(str::to_owned).collect()
}

/// So many stories of about so many tokens, with [`STORY_END`] between them.
pub fn stories(seed: u64, number: usize, tokens: usize) -> String {
    let mut rng = Rng::new(seed);
    let all: Vec<String> =
        (0..number).map(|_| story(rng.next_u64(), tokens / 2 + rng.below(tokens))).collect();
    all.join(&format!("\n{STORY_END}\n"))
}

/// How sharp predictions are: the length of the logits of a token's successors.
const SHARPNESS: f32 = 18.0;
/// Length of what the feed-forward layers write, where an embedding has the length of two unit vectors.
const WRITTEN: f32 = 3.0;
/// Size of what the attention adds.
const ATTENTION: f32 = 0.5;
/// Size of what the other units of the feed-forward layers add.
const OTHERS: f32 = 0.1;

/// A dense model of the shape of stories260K that continues these stories, made of their chain and not trained.
///
/// The embedding of a token is the sum of a unit vector for reading it and one for writing it, all of them orthogonal. In every block one unit of the feed-forward layer reads each token, and writes a fifth of the vectors of its successors. The other
/// units, and attention, are random and add a little.
pub fn storyteller() -> Llama2cCheckpoint {
    let shape = Llama2cShape::STORIES_260K;
    let Llama2cShape { dim, hidden, layers, .. } = shape;
    let names = pieces();
    let id = |token: &str| {
        let name = token.replace(' ', "\u{2581}");
        names.iter().position(|piece| *piece == name).expect("a token of the vocabulary")
    };
    let mut rng = Rng::new(260);
    let mut model = Llama2cCheckpoint::random(shape, 261);
    // The beginning of a text is a token, too.
    let mut chain: Vec<(usize, Vec<usize>)> = vec![(1, vec![id(" Once")])];
    chain.extend(CHAIN.iter().map(|(token, next)| (id(token), next.iter().map(|next| id(next)).collect())));
    let mut writes = orthogonal(&mut rng, dim);
    let reads = writes.split_off(dim / 2);
    assert!(chain.len() <= reads.len(), "a vector for reading and one for writing each token");
    let unit_of = |id: usize| chain.iter().position(|(token, _)| *token == id).expect("it is in the chain");

    // All other tokens have short embeddings.
    model.embedding.iter_mut().for_each(|v| *v *= 0.3 / (dim as f32).sqrt());
    for (unit, (id, _)) in chain.iter().enumerate() {
        let sum = reads[unit].iter().zip(&writes[unit]).map(|(a, b)| a + b);
        model.embedding.splice(id * dim..(id + 1) * dim, sum);
    }
    // A unit vector in the direction of what is written has these logits: its length is the square root of `dim`, as the norm makes it.
    let full = (WRITTEN * WRITTEN + 2.0).sqrt();
    model.norm = vec![SHARPNESS * full / (WRITTEN * (dim as f32).sqrt()); dim];

    for (layer, block) in model.blocks.iter_mut().enumerate() {
        block.attention_norm = vec![1.0; dim];
        block.mlp_norm = vec![1.0; dim];
        block.output.iter_mut().for_each(|v| *v *= ATTENTION / (dim as f32).sqrt());
        block.down.iter_mut().for_each(|v| *v *= OTHERS);
        let done = layer as f32 / layers as f32;
        // The length of the stream here: the reading vector, what is left of the writing one, and what was written.
        let length = (1.0 + (1.0 - 2.0 * done).powi(2) + (WRITTEN * done).powi(2)).sqrt();
        let read = (dim as f32).sqrt() / length;
        let gain = read / (1.0 + (-read).exp()) * read;
        for (unit, (_, next)) in chain.iter().enumerate() {
            block.gate.splice(unit * dim..(unit + 1) * dim, reads[unit].iter().copied());
            block.up.splice(unit * dim..(unit + 1) * dim, reads[unit].iter().copied());
            let mut written: Vec<f32> = writes[unit].iter().map(|v| -2.0 * v).collect();
            for (weight, next) in logits(next.len()).iter().zip(next) {
                let of = &writes[unit_of(*next)];
                written.iter_mut().zip(of).for_each(|(v, w)| *v += WRITTEN / SHARPNESS * weight * w);
            }
            for (row, v) in written.iter().enumerate() {
                block.down[row * hidden + unit] = v / (layers as f32 * gain);
            }
        }
    }
    model
}

/// Logits of so many successors: logarithms of their shares, and as much more as gives them the length [`SHARPNESS`].
fn logits(successors: usize) -> Vec<f32> {
    let shares: Vec<f32> = (0..successors).map(|rank| share(rank, successors).ln()).collect();
    let length = |more: f32| shares.iter().map(|v| (v + more).powi(2)).sum::<f32>().sqrt();
    let (mut low, mut high) = (4.0, 2.0 * SHARPNESS);
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        if length(middle) < SHARPNESS { low = middle } else { high = middle }
    }
    shares.iter().map(|v| v + low).collect()
}

/// Random unit vectors, each orthogonal to all others.
fn orthogonal(rng: &mut Rng, dim: usize) -> Vec<Vec<f32>> {
    let mut all: Vec<Vec<f32>> = Vec::new();
    while all.len() < dim {
        let mut vector: Vec<f64> = rng.normals(dim).into_iter().map(f64::from).collect();
        // Twice, for what the first time leaves by rounding.
        for other in all.iter().chain(&all) {
            let product: f64 = vector.iter().zip(other).map(|(a, &b)| a * f64::from(b)).sum();
            vector.iter_mut().zip(other).for_each(|(a, &b)| *a -= product * f64::from(b));
        }
        let length = vector.iter().map(|v| v * v).sum::<f64>().sqrt();
        all.push(vector.iter().map(|v| (v / length) as f32).collect());
    }
    all
}

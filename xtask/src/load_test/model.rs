//! A GGUF file of random trits, which runs at the speed of a trained model of its shape.

use anyhow::{Result, bail};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::client::Noise;

const VOCAB: usize = 32_000;
const CONTEXT: u32 = 4096;
/// Bytes that tensors start at multiples of.
const ALIGNMENT: usize = 32;
/// GGUF's numbers of the types of tensors.
const F32: u32 = 0;
const F16: u32 = 1;
const TQ2_0: u32 = 35;
/// Weights of a block of TQ2_0, of 64 bytes of trits and a scale of 2.
const BLOCK: usize = 256;

/// Layers, width, width of the MLP, heads, heads of keys.
struct Shape(u32, usize, usize, u32, u32);

fn shape(name: &str) -> Result<Shape> {
    match name {
        "125m" => Ok(Shape(12, 768, 2048, 12, 12)),
        "2b" => Ok(Shape(30, 2560, 6912, 20, 5)),
        _ => bail!("no shape {name:?}: 125m and 2b are known"),
    }
}

/// The file of a shape, written unless it is there.
pub(super) fn file(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(format!("random-{name}.gguf"));
    if path.is_file() {
        return Ok(path);
    }
    std::fs::create_dir_all(folder)?;
    let unfinished = path.with_extension("part");
    write(&mut BufWriter::new(File::create(&unfinished)?), &shape(name)?)?;
    std::fs::rename(&unfinished, &path)?;
    Ok(path)
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A pair of the metadata: the type and the bytes of its value.
fn pair(out: &mut Vec<u8>, name: &str, kind: u32, value: &[u8]) {
    text(out, name);
    out.extend(kind.to_le_bytes());
    out.extend(value);
}

/// The bytes of a list of `kind`.
fn list(kind: u32, items: impl ExactSizeIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((items.len() as u64).to_le_bytes());
    items.for_each(|item| out.extend(item));
    out
}

fn string(value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, value);
    out
}

/// The tokens: three special ones, all bytes, and invented words.
fn tokens() -> Vec<String> {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend((b'a'..=b'z').chain(b'A'..=b'Z').map(|letter| char::from(letter).to_string()));
    tokens.push("\u{2581}".to_owned());
    let mut number = 0usize;
    while tokens.len() < VOCAB {
        let letter = |place: u32| char::from(b'a' + (number / 26usize.pow(place) % 26) as u8);
        tokens.push(format!("\u{2581}{}{}{}{}", letter(0), letter(1), letter(2), letter(3)));
        number += 1;
    }
    tokens
}

fn write(out: &mut impl Write, shape: &Shape) -> Result<()> {
    let &Shape(layers, hidden, inner, heads, kv_heads) = shape;
    let kv = hidden / heads as usize * kv_heads as usize;
    let mut tensors = vec![("token_embd.weight".to_owned(), F16, hidden, VOCAB)];
    for layer in 0..layers {
        let mut add = |name: &str, kind, cols, rows| {
            tensors.push((format!("blk.{layer}.{name}.weight"), kind, cols, rows));
        };
        add("attn_norm", F32, hidden, 1);
        add("attn_q", TQ2_0, hidden, hidden);
        add("attn_k", TQ2_0, hidden, kv);
        add("attn_v", TQ2_0, hidden, kv);
        add("attn_output", TQ2_0, hidden, hidden);
        add("ffn_norm", F32, hidden, 1);
        add("ffn_gate", TQ2_0, hidden, inner);
        add("ffn_up", TQ2_0, hidden, inner);
        add("ffn_down", TQ2_0, inner, hidden);
    }
    tensors.push(("output_norm.weight".to_owned(), F32, hidden, 1));

    const U32: u32 = 4;
    const FLOAT: u32 = 6;
    const STRING: u32 = 8;
    const LIST: u32 = 9;
    const I32: u32 = 5;
    let tokens = tokens();
    let kind = |at: usize| -> i32 {
        match at {
            0 => 2,
            1 | 2 => 3,
            3..=258 => 6,
            _ => 1,
        }
    };
    let count = |value: u32| value.to_le_bytes().to_vec();
    let pairs: Vec<(&str, u32, Vec<u8>)> = vec![
        ("general.architecture", STRING, string("llama")),
        ("general.alignment", U32, count(ALIGNMENT as u32)),
        ("llama.block_count", U32, count(layers)),
        ("llama.context_length", U32, count(CONTEXT)),
        ("llama.embedding_length", U32, count(hidden as u32)),
        ("llama.feed_forward_length", U32, count(inner as u32)),
        ("llama.attention.head_count", U32, count(heads)),
        ("llama.attention.head_count_kv", U32, count(kv_heads)),
        ("llama.attention.layer_norm_rms_epsilon", FLOAT, 1e-5f32.to_le_bytes().to_vec()),
        ("llama.rope.freq_base", FLOAT, 10_000f32.to_le_bytes().to_vec()),
        ("llama.vocab_size", U32, count(VOCAB as u32)),
        ("tokenizer.ggml.model", STRING, string("llama")),
        ("tokenizer.ggml.tokens", LIST, list(STRING, tokens.iter().map(|token| string(token)))),
        (
            "tokenizer.ggml.scores",
            LIST,
            list(FLOAT, (0..VOCAB).map(|at| (-(at as f32)).to_le_bytes().to_vec())),
        ),
        ("tokenizer.ggml.token_type", LIST, list(I32, (0..VOCAB).map(|at| kind(at).to_le_bytes().to_vec()))),
        ("tokenizer.ggml.bos_token_id", U32, count(1)),
        ("tokenizer.ggml.eos_token_id", U32, count(2)),
        ("tokenizer.ggml.unknown_token_id", U32, count(0)),
    ];
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((pairs.len() as u64).to_le_bytes());
    for (name, kind, value) in &pairs {
        pair(&mut head, name, *kind, value);
    }
    let mut offset = 0;
    for (name, kind, cols, rows) in &tensors {
        text(&mut head, name);
        let sizes: &[usize] = if *rows == 1 { &[*cols] } else { &[*cols, *rows] };
        head.extend((sizes.len() as u32).to_le_bytes());
        sizes.iter().for_each(|size| head.extend((*size as u64).to_le_bytes()));
        head.extend(kind.to_le_bytes());
        head.extend((offset as u64).to_le_bytes());
        offset += bytes(*kind, cols * rows).next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    out.write_all(&head)?;
    let mut noise = Noise(1);
    for (_, kind, cols, rows) in &tensors {
        let mut data = values(*kind, *cols, cols * rows, &mut noise);
        data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        out.write_all(&data)?;
    }
    Ok(out.flush()?)
}

fn bytes(kind: u32, count: usize) -> usize {
    match kind {
        F32 => count * 4,
        F16 => count * 2,
        _ => count / BLOCK * (BLOCK / 4 + 2),
    }
}

/// Random values: norms of one, an embedding in ±1/16, and trits with the scale that keeps the variance of a row.
fn values(kind: u32, cols: usize, count: usize, noise: &mut Noise) -> Vec<u8> {
    match kind {
        F32 => (0..count).flat_map(|_| 1f32.to_le_bytes()).collect(),
        // Exponents of 2^-5 to 2^-8 with random signs and fractions.
        F16 => (0..count)
            .flat_map(|_| {
                let random = noise.next() >> 40;
                let (sign, exponent, fraction) = (random & 1, 7 + (random >> 1) % 4, (random >> 3) & 0x3FF);
                ((sign << 15 | exponent << 10 | fraction) as u16).to_le_bytes()
            })
            .collect(),
        _ => {
            let scale = half(1.0 / (cols as f32).sqrt()).to_le_bytes();
            let mut out = Vec::with_capacity(bytes(kind, count));
            for _ in 0..count / BLOCK {
                for _ in 0..BLOCK / 4 {
                    // Four fields of 0, 1 or 2.
                    let random = noise.next();
                    let field = |at: u64| ((random >> (8 * at) & 0xFF) * 3) >> 8;
                    out.push((field(0) | field(1) << 2 | field(2) << 4 | field(3) << 6) as u8);
                }
                out.extend(scale);
            }
            out
        }
    }
}

/// A number between 2^-14 and 1 as f16, rounded down.
fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    ((((bits >> 23) - 112) << 10) | (bits >> 13 & 0x3FF)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_size_of_its_tensors() {
        assert_eq!(half(0.5), 0x3800);
        assert_eq!(half(0.25), 0x3400);
        let mut out = Vec::new();
        write(&mut out, &Shape(1, 256, 512, 4, 2)).expect("memory");
        assert!(out.starts_with(b"GGUF\x03\0\0\0"));
        let matrices = bytes(TQ2_0, 256 * 256 * 2 + 128 * 256 * 2 + 3 * 256 * 512);
        let data = VOCAB * 256 * 2 + 3 * 256 * 4 + matrices;
        assert!(out.len() > data && out.len() < data + (2 << 20), "{} for {data}", out.len());
        assert_eq!(tokens().len(), VOCAB);
    }
}

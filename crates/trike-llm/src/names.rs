//! Names of the decoder's weights in each format.

use trike_nn::{DecoderSpec, RopePairing, WeightName};

/// Prefix of GGUF keys with whole files of a model directory: text as strings, other files as bytes.
pub(crate) const FILE_KEY: &str = "trike.file.";

/// The name of a weight in a GGUF file.
pub(crate) fn gguf(name: WeightName) -> String {
    let (layer, rest) = match name {
        WeightName::Embedding => return "token_embd.weight".to_owned(),
        WeightName::FinalNorm => return "output_norm.weight".to_owned(),
        WeightName::Head => return "output.weight".to_owned(),
        WeightName::AttentionNorm(l) => (l, "attn_norm"),
        WeightName::Query(l) => (l, "attn_q"),
        WeightName::Key(l) => (l, "attn_k"),
        WeightName::Value(l) => (l, "attn_v"),
        WeightName::Output(l) => (l, "attn_output"),
        WeightName::MlpNorm(l) => (l, "ffn_norm"),
        WeightName::Gate(l) => (l, "ffn_gate"),
        WeightName::Up(l) => (l, "ffn_up"),
        WeightName::Down(l) => (l, "ffn_down"),
        WeightName::QueryNorm(l) => (l, "attn_q_norm"),
        WeightName::KeyNorm(l) => (l, "attn_k_norm"),
        WeightName::AttentionSubNorm(l) => (l, "attn_sub_norm"),
        WeightName::MlpSubNorm(l) => (l, "ffn_sub_norm"),
        WeightName::QueryBias(l) => return format!("blk.{l}.attn_q.bias"),
        WeightName::KeyBias(l) => return format!("blk.{l}.attn_k.bias"),
        WeightName::ValueBias(l) => return format!("blk.{l}.attn_v.bias"),
        WeightName::OutputBias(l) => return format!("blk.{l}.attn_output.bias"),
        WeightName::GateBias(l) => return format!("blk.{l}.ffn_gate.bias"),
        WeightName::UpBias(l) => return format!("blk.{l}.ffn_up.bias"),
        WeightName::DownBias(l) => return format!("blk.{l}.ffn_down.bias"),
    };
    format!("blk.{layer}.{rest}.weight")
}

/// Row permutation that converts a query or key projection (or its bias or norm) from one RoPE pairing to another: the old row of
/// each new row; `None` when no row moves.
///
/// Rows `2 i` and `2 i + 1` of a head in the adjacent pairing are rows `i` and `i + d / 2` in the halves pairing.
pub(crate) fn rotary_rows(
    name: WeightName,
    spec: &DecoderSpec,
    from: RopePairing,
    to: RopePairing,
) -> Option<Vec<usize>> {
    let heads = match name {
        WeightName::Query(_) | WeightName::QueryBias(_) => spec.heads,
        WeightName::Key(_) | WeightName::KeyBias(_) => spec.kv_heads,
        WeightName::QueryNorm(_) | WeightName::KeyNorm(_) => 1,
        _ => return None,
    };
    let (d, half) = (spec.head_dim, spec.head_dim / 2);
    let old: fn(usize, usize) -> usize = match (from, to) {
        (RopePairing::Halves, RopePairing::Adjacent) => |i, half| i / 2 + (i % 2) * half,
        (RopePairing::Adjacent, RopePairing::Halves) => |i, half| 2 * (i % half) + i / half,
        _ => return None,
    };
    Some((0..heads).flat_map(|h| (0..d).map(move |i| h * d + old(i, half))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairing_there_and_back_is_the_identity() {
        let spec = DecoderSpec { kv_heads: 1, ..DecoderSpec::llama(12, 1, 2, 3) };
        let rows = |from, to| rotary_rows(WeightName::Query(0), &spec, from, to);
        let there = rows(RopePairing::Halves, RopePairing::Adjacent).unwrap();
        assert_eq!(there, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        let back = rows(RopePairing::Adjacent, RopePairing::Halves).unwrap();
        assert!((0..12).all(|i| there[back[i]] == i));
        assert_eq!(rows(RopePairing::Halves, RopePairing::Halves), None);
        assert_eq!(
            rotary_rows(WeightName::Value(0), &spec, RopePairing::Halves, RopePairing::Adjacent),
            None
        );
    }
}

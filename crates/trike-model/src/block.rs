//! The decoder block, generic over the operations of an interpreter.

use trike_core::GatedActivation;

use crate::{AttentionLayer, DecoderSpec, Mixer, Mlp, WeightName};

/// Input of a linear layer whose output is added to the residual stream.
#[derive(Debug)]
pub enum LayerInput<'x, T> {
    /// A tensor.
    Plain(&'x T),
    /// The [gated activation](trike_core::GatedActivation) of two tensors.
    Gated {
        /// Input of the activation.
        gate: &'x T,
        /// Factor of the activation.
        up: &'x T,
        /// The activation.
        activation: GatedActivation,
    },
}

impl<T> Clone for LayerInput<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LayerInput<'_, T> {}

/// Linear layers and the operations on their inputs.
///
/// Activations are `tokens x width`. An operation receives everything that it can fuse. Biases are those that the decoder
/// [has](DecoderSpec::has); norms are RMSNorms.
#[expect(clippy::missing_errors_doc, reason = "those of the interpreter")]
pub trait LayerOps {
    /// Activations.
    type Tensor;
    /// Failures of an operation.
    type Error;

    /// Linear layers that share the input `norm(x)`.
    fn project<const N: usize>(
        &mut self,
        x: &Self::Tensor,
        norm: WeightName,
        layers: [WeightName; N],
    ) -> Result<[Self::Tensor; N], Self::Error>;

    /// Adds the output of a linear layer to the residual stream `x`, after an optional norm of its input.
    fn project_add(
        &mut self,
        input: LayerInput<'_, Self::Tensor>,
        norm: Option<WeightName>,
        layer: WeightName,
        x: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;
}

/// Attention on top of [`LayerOps`]. `S` is its state: positions, cached keys and values.
#[expect(clippy::missing_errors_doc, reason = "those of the interpreter")]
pub trait AttentionOps<S>: LayerOps {
    /// The norm of every head of queries or keys.
    fn head_norm(&mut self, x: Self::Tensor, norm: WeightName) -> Result<Self::Tensor, Self::Error>;

    /// Attention of queries, keys and values; with [`rope`](AttentionLayer::rope), queries and keys are rotated first.
    fn attend(
        &mut self,
        layer: AttentionLayer,
        qkv: [Self::Tensor; 3],
        state: &mut S,
    ) -> Result<Self::Tensor, Self::Error>;
}

/// Passes the residual stream `x` through the [mixer and the MLP](DecoderSpec::layer) of a layer; with attention and a gated MLP:
///
/// ```text
/// x += O attention(rope(Q norm(x)), rope(K norm(x)), V norm(x))
/// x += D (f(G norm(x)) * U norm(x))
/// ```
///
/// with the additional norms and biases that `spec` [has](DecoderSpec::has).
///
/// # Errors
///
/// Errors of the operations.
pub fn block<S, O: AttentionOps<S>>(
    ops: &mut O,
    spec: &DecoderSpec,
    layer: usize,
    x: &mut O::Tensor,
    state: &mut S,
) -> Result<(), O::Error> {
    match spec.layer(layer).mixer {
        Mixer::Attention(how) => attention(ops, spec, layer, how, x, state)?,
    }
    mlp(ops, spec, layer, x)
}

/// The first half of a [`block`](fn@block) of a layer with attention `how`, added to `x`.
///
/// # Errors
///
/// Errors of the operations.
pub fn attention<S, O: AttentionOps<S>>(
    ops: &mut O,
    spec: &DecoderSpec,
    layer: usize,
    how: AttentionLayer,
    x: &mut O::Tensor,
    state: &mut S,
) -> Result<(), O::Error> {
    use WeightName as W;
    let layers = [W::Query(layer), W::Key(layer), W::Value(layer)];
    let [mut q, mut k, v] = ops.project(x, W::AttentionNorm(layer), layers)?;
    if spec.qk_norm {
        q = ops.head_norm(q, W::QueryNorm(layer))?;
        k = ops.head_norm(k, W::KeyNorm(layer))?;
    }
    let attended = ops.attend(how, [q, k, v], state)?;
    ops.project_add(
        LayerInput::Plain(&attended),
        spec.optional(W::AttentionSubNorm(layer)),
        W::Output(layer),
        x,
    )
}

/// The second half of a [`block`](fn@block): the MLP, added to `x`.
///
/// # Errors
///
/// Errors of the operations.
pub fn mlp<O: LayerOps>(
    ops: &mut O,
    spec: &DecoderSpec,
    layer: usize,
    x: &mut O::Tensor,
) -> Result<(), O::Error> {
    use WeightName as W;
    match spec.layer(layer).mlp {
        Mlp::Gated(activation) => {
            let [gate, up] = ops.project(x, W::MlpNorm(layer), [W::Gate(layer), W::Up(layer)])?;
            let input = LayerInput::Gated { gate: &gate, up: &up, activation };
            ops.project_add(input, spec.optional(W::MlpSubNorm(layer)), W::Down(layer), x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the operations; a tensor is represented by its description.
    #[derive(Default)]
    struct Trace(Vec<String>);

    fn short(name: WeightName) -> String {
        name.to_string().trim_start_matches("model.layers.1.").trim_end_matches(".weight").to_owned()
    }

    impl LayerOps for Trace {
        type Tensor = String;
        type Error = String;

        fn project<const N: usize>(
            &mut self,
            x: &String,
            norm: WeightName,
            layers: [WeightName; N],
        ) -> Result<[String; N], String> {
            Ok(layers.map(|layer| format!("{}({}({x}))", short(layer), short(norm))))
        }

        fn project_add(
            &mut self,
            input: LayerInput<'_, String>,
            norm: Option<WeightName>,
            layer: WeightName,
            x: &mut String,
        ) -> Result<(), String> {
            let input = match input {
                LayerInput::Plain(input) => input.clone(),
                LayerInput::Gated { gate, up, .. } => format!("{gate} * {up}"),
            };
            let norm = norm.map_or(String::new(), short);
            self.0.push(format!("{x} + {}({norm}({input}))", short(layer)));
            "x".clone_into(x);
            Ok(())
        }
    }

    impl AttentionOps<usize> for Trace {
        fn head_norm(&mut self, x: String, norm: WeightName) -> Result<String, String> {
            Ok(format!("{}({x})", short(norm)))
        }

        fn attend(
            &mut self,
            layer: AttentionLayer,
            qkv: [String; 3],
            state: &mut usize,
        ) -> Result<String, String> {
            *state += 1;
            assert_eq!(layer, AttentionLayer { window: None, rope: true });
            if *state > 1 { Err("full".to_owned()) } else { Ok(qkv.join(", ")) }
        }
    }

    #[test]
    fn a_block_is_attention_and_a_gated_mlp() {
        let spec = DecoderSpec { qk_norm: true, sub_norms: true, ..DecoderSpec::llama(8, 2, 2, 10) };
        let (mut trace, mut x, mut state) = (Trace::default(), "x".to_owned(), 0);
        block(&mut trace, &spec, 1, &mut x, &mut state).expect("a block");
        assert_eq!(
            trace.0,
            [
                "x + self_attn.o_proj(self_attn.attn_sub_norm(self_attn.q_norm(self_attn.q_proj(input_layernorm(x))), \
                 self_attn.k_norm(self_attn.k_proj(input_layernorm(x))), self_attn.v_proj(input_layernorm(x))))",
                "x + mlp.down_proj(mlp.ffn_sub_norm(mlp.gate_proj(post_attention_layernorm(x)) * \
                 mlp.up_proj(post_attention_layernorm(x))))",
            ]
        );
        assert_eq!(block(&mut trace, &spec, 1, &mut x, &mut state), Err("full".to_owned()));
        assert_eq!(trace.0.len(), 2);
    }
}

//! Ternary layers as Candle modules.
//!
//! Start from [`TernaryLinear`], which replaces a `candle_nn::Linear`:
//!
//! ```
//! # use candle_core::{Device, Tensor};
//! # use candle_nn::{Linear, Module};
//! use trike_candle::convert_linear;
//!
//! let linear = Linear::new(Tensor::randn(0f32, 1.0, (256, 128), &Device::Cpu)?, None);
//! let (ternary, stats) = convert_linear(&linear)?;
//! let y = ternary.forward(&Tensor::randn(0f32, 1.0, (4, 128), &Device::Cpu)?)?;
//! println!("{} bytes for {:?}, relative error {:.2}", ternary.bytes(), y.shape(), stats.relative_error);
//! # assert_eq!((y.dims(), ternary.bytes()), (&[4, 256][..], 256 * 128 / 4 + 4));
//! # assert!((0.4..0.6).contains(&stats.relative_error));
//! # Ok::<(), trike_candle::CandleError>(())
//! ```
//!
//! The decision that shaped this crate: tensors in, tensors out, and every operation is a custom operation of Candle
//! with a backward pass, so a ternary layer can be used anywhere in a Candle model, also below layers that are trained. The
//! price is speed: [`trike_nn::Decoder`] is faster, because it does not use Candle tensors and quantizes activations once for
//! several projections.
//!
//! * linear layers: [`TernaryLinear`] with [`LinearKind`], [`BitLinear`], [`convert_linear`];
//!   [`LatentBitLinear`], which is trained
//! * weights: [`quantize_tensor`] with [`Ternarize`] and [`QuantizationStats`]; [`TernarizeOptions`]
//! * attention with its projections: [`MultiHeadAttention`] with [`AttentionConfig`] and [`AttentionWeights`] of any [`Projection`];
//!   [`TernaryAttention`] with [`TernaryAttentionConfig`] and [`TernaryAttentionWeights`]
//! * attention alone: [`Attention`] and [`attention()`](attention()), with [`KvCache`], [`KvPrecision`], [`KeySelector`], [`PromptKeys`],
//!   [`AttentionMask`], [`BlockBitmap`], [`AttentionScores`]
//! * the rest of a block: [`RmsNorm`] and [`rms_norm()`], [`RotaryEmbedding`], [`SwiGlu`] and [`gated()`]
//! * threads: [`shared_cpu`]; every module has `with_cpu` for another executor
//! * errors: [`CandleError`]
//!
//! Tensors are on the CPU, in f32, f16 or bf16, and the result has the dtype of the input. Arithmetic is f32, except for the int8
//! products of ternary layers ([`TernaryLinear::with_activations`] changes their precision). A tensor on
//! another device is an error: there are no implicit copies. Constructors and free functions return [`CandleError`]; methods
//! of the trait `candle_nn::Module` wrap it in Candle's error.
//!
//! The feature `gpu` enables linear layers on a device, and `wgpu`, `vulkan`, `cuda`, `hip` and `metal` enable one
//! runtime each.
#![forbid(unsafe_code)]

// Compiles the examples of the handbook page as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/candle.md")]
struct Handbook;

mod attend;
mod attention;
mod bitlinear;
mod dense;
mod error;
mod exec;
mod kv;
mod latent;
mod linear;
mod mask;
mod mlp;
mod norm;
#[cfg(feature = "gpu")]
mod on_device;
mod packed;
mod popcount;
mod projections;
mod quantize;
mod rotary;
mod scores;
mod trits;

pub use attend::{Attention, attention};
pub use attention::{AttentionConfig, MultiHeadAttention, TernaryAttention, TernaryAttentionConfig};
pub use bitlinear::BitLinear;
pub use error::CandleError;
pub use exec::shared_cpu;
pub use kv::KvCache;
pub use latent::LatentBitLinear;
pub use linear::{LinearKind, TernaryLinear, convert_linear};
pub use mask::AttentionMask;
pub use mlp::{SwiGlu, gated};
pub use norm::{RmsNorm, rms_norm};
pub use projections::{AttentionWeights, Projection, TernaryAttentionWeights};
pub use quantize::{QuantizationStats, Ternarize, TernarizeOptions, quantize_tensor};
pub use rotary::RotaryEmbedding;
pub use trike_core::{
    ActivationPolicy, ActivationPrecision, AttentionSpec, BlockBitmap, GatedActivation, KeySelector,
    KvPrecision, Layout, PromptKeys, RopePairing, RopeScaling, RopeSpec,
};
pub use trike_cpu::Cpu;
pub use trike_nn::NnError;
pub use trits::AttentionScores;

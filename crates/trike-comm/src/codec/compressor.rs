//! Single gradients as messages.

use crate::CommError;
use crate::codec::{Codec, CodecConfig, MessageCodec};

/// Encodes gradients as messages of a codec, with statistics of each, and decodes them. To exchange gradients between ranks, use
/// [`Codec::exchange`].
///
/// ```
/// use trike_comm::CodecConfig;
/// use trike_comm::codec::GradientCompressor;
///
/// let mut compressor = GradientCompressor::new(CodecConfig::Ternary, &[[2, 3]])?;
/// let compressed = compressor.compress(&[1.0, 0.0, -1.0, 0.0, 1.0, 0.0])?;
/// assert_eq!(compressed.stats.bytes, 6);
/// assert_eq!(compressed.stats.ratio, 4.0);
/// assert!((compressed.stats.cosine - 1.0).abs() < 1e-6);
/// assert_eq!(compressor.decompress(&compressed.message)?, [1.0, 0.0, -1.0, 0.0, 1.0, 0.0]);
/// # Ok::<(), trike_comm::CommError>(())
/// ```
#[doc(alias = "VSAGradientCompressor")]
#[derive(Debug)]
pub struct GradientCompressor {
    codec: Box<dyn MessageCodec>,
}

/// A gradient as a message.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedGradient {
    /// The encoded message.
    pub message: Vec<u8>,
    /// Statistics of the message.
    pub stats: CompressionStats,
}

/// Figures of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressionStats {
    /// Bytes of the message.
    pub bytes: usize,
    /// Compression ratio relative to f32; 1 for gradients without elements.
    pub ratio: f64,
    /// Cosine similarity of the gradient and its message; 0 if one of them is zero. The message includes the error feedback of
    /// earlier gradients, so this does not measure the loss of a run.
    pub cosine: f64,
}

impl GradientCompressor {
    /// A compressor for gradients of tensors of these shapes, rows and columns.
    ///
    /// # Errors
    ///
    /// Errors of [`CodecConfig::build_message`].
    pub fn new(config: CodecConfig, shapes: &[[usize; 2]]) -> Result<Self, CommError> {
        Ok(Self { codec: config.build_message(shapes)? })
    }

    /// The codec; its [`state`](Codec::state) belongs in a run's checkpoint.
    #[must_use]
    pub fn codec(&self) -> &dyn Codec {
        &*self.codec
    }

    /// The codec, for [restoring](crate::codec::restore) its state.
    pub fn codec_mut(&mut self) -> &mut dyn Codec {
        &mut *self.codec
    }

    /// Encodes a gradient plus the residual of earlier messages.
    ///
    /// # Errors
    ///
    /// Errors of [`Codec::check`], as rank 0; the state is then unchanged.
    pub fn compress(&mut self, gradient: &[f32]) -> Result<CompressedGradient, CommError> {
        let message = self.codec.encode(gradient)?;
        let cosine = cosine(gradient, &self.decompress(&message)?);
        let bytes = message.len();
        let ratio = if gradient.is_empty() { 1.0 } else { 4.0 * gradient.len() as f64 / bytes as f64 };
        Ok(CompressedGradient { message, stats: CompressionStats { bytes, ratio, cosine } })
    }

    /// Decodes the gradient of a message.
    ///
    /// # Errors
    ///
    /// Errors of [`MessageCodec::add`], as rank 0.
    pub fn decompress(&self, message: &[u8]) -> Result<Vec<f32>, CommError> {
        let mut gradient = vec![0.0; self.codec.len()];
        self.codec.add(0, message, 1.0, &mut gradient)?;
        Ok(gradient)
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let lengths = dot(a, a).sqrt() * dot(b, b).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths).clamp(-1.0, 1.0) } else { 0.0 }
}

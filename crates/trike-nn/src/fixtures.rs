//! A small model for unit tests.

use crate::DecoderSpec;

/// Two layers with two key/value heads of eight.
pub(crate) fn small() -> DecoderSpec {
    DecoderSpec {
        intermediate: 80,
        kv_heads: 2,
        context: 64,
        tied_head: true,
        ..DecoderSpec::llama(48, 2, 6, 97)
    }
}

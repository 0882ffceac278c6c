//! Expectations about compiled kernels, as tables: required instructions, unsupported pairs of kernel and target, and
//! reasons for a low occupancy.
//!
//! A stale row fails like a missing one.

/// A kernel that is not launched on some targets, or does not compile for them.
pub(crate) struct Unsupported {
    /// The end of the kernel's path.
    pub(crate) kernel: &'static str,
    /// Names of targets; a trailing `*` is a wildcard.
    pub(crate) targets: &'static [&'static str],
    /// The missing feature.
    pub(crate) feature: &'static str,
}

/// All pairs of kernel and target that are not compiled.
pub(crate) const UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        kernel: "linear::kernels::mma::mma::Mma",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on bytes, s8 m16n8k32",
    },
    Unsupported {
        kernel: "linear::kernels::wmma::wmma::Wmma",
        targets: &["wgsl*"],
        feature: "cooperative matrices",
    },
    Unsupported {
        kernel: "attention::joined::decode_joined::DecodeJoined",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "instructions of PTX; the second kernel joins the parts",
    },
    Unsupported {
        kernel: "attention::joined::decode_several_joined::DecodeSeveralJoined",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "instructions of PTX; the second kernel joins the parts",
    },
    Unsupported {
        kernel: "attention::combine::combine::Combine",
        targets: &["cuda*"],
        feature: "a need for it: the last cube joins the parts",
    },
    Unsupported {
        kernel: "attention::combine::combine_several::CombineSeveral",
        targets: &["cuda*"],
        feature: "a need for it: the last cube joins the parts",
    },
    Unsupported {
        kernel: "linear::kernels::dense_mma::dense_mma::DenseMma",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on tf32, m16n8k8, in planes of 32",
    },
    Unsupported {
        kernel: "attention::mma::mma::Mma",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on FP16, f16 m16n8k16, in planes of 32",
    },
    Unsupported {
        kernel: "probe::multiply_bytes::MultiplyBytes",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on bytes, s8 m16n8k32",
    },
    Unsupported {
        kernel: "probe::multiply_halves::MultiplyHalves",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on FP16, f16 m16n8k16, in planes of 32",
    },
    Unsupported {
        kernel: "linear::kernels::decode::decode::Decode",
        targets: &["wgsl-minimal"],
        feature: "ten storage buffers",
    },
    Unsupported {
        kernel: "linear::kernels::tiled::tiled::Tiled",
        targets: &["wgsl-minimal"],
        feature: "ten storage buffers",
    },
    Unsupported {
        kernel: "linear::kernels::base3::base3::Base3",
        targets: &["wgsl-minimal"],
        feature: "ten storage buffers",
    },
    Unsupported {
        kernel: "linear::kernels::combine::combine::Combine",
        targets: &["wgsl-minimal"],
        feature: "ten storage buffers for the kernel that writes the partial sums",
    },
    Unsupported {
        kernel: "fused::kernel::fused::Fused",
        targets: &["wgsl-minimal"],
        feature: "nine storage buffers",
    },
    Unsupported {
        kernel: "ops::rotate_codes::kernel::rotate_and_store_codes::RotateAndStoreCodes",
        targets: &["wgsl-minimal"],
        feature: "eight storage buffers",
    },
    Unsupported {
        kernel: "ops::rotate_codes::kernel::rotate_and_store_codes_several::RotateAndStoreCodesSeveral",
        targets: &["wgsl-minimal"],
        feature: "eight storage buffers",
    },
    Unsupported {
        kernel: "grad::attention_back::keys_values::KeysValues",
        targets: &["wgsl-minimal"],
        feature: "eight storage buffers",
    },
    Unsupported {
        kernel: "linear::kernels::bitmap::bitmap::Bitmap",
        targets: &["wgsl-minimal"],
        feature: "eight storage buffers",
    },
];

/// Instructions that the PTX of a kernel must contain, on every CUDA target that launches it.
pub(crate) struct Expected {
    /// The end of the kernel's path.
    pub(crate) kernel: &'static str,
    /// A substring of the form's text; empty for all forms.
    pub(crate) form: &'static str,
    /// Prefixes of instructions; on each target, at least one matching form must contain each of them.
    pub(crate) instructions: &'static [&'static str],
}

/// Kernels that are written for a specific instruction.
pub(crate) const EXPECTED: &[Expected] = &[
    Expected { kernel: "linear::kernels::decode::decode::Decode", form: "", instructions: &["dp4a."] },
    Expected { kernel: "linear::kernels::tiled::tiled::Tiled", form: "", instructions: &["dp4a."] },
    Expected { kernel: "linear::kernels::base3::base3::Base3", form: "", instructions: &["dp4a."] },
    Expected {
        kernel: "linear::kernels::mma::mma::Mma",
        form: "",
        instructions: &[
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
            "cp.async.cg.shared::cta.global",
            "cp.async.commit_group",
            "cp.async.wait_group",
        ],
    },
    Expected {
        kernel: "linear::kernels::mma::mma::Mma",
        form: "cubes: 4",
        instructions: &["membar.gl", "atom."],
    },
    Expected {
        kernel: "linear::kernels::dense_mma::dense_mma::DenseMma",
        form: "",
        instructions: &[
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
            "cp.async.cg.shared::cta.global",
        ],
    },
    Expected {
        kernel: "linear::kernels::wmma::wmma::Wmma",
        form: "",
        instructions: &["wmma.mma.sync.aligned.row.col.m", "wmma.load.a.sync", "wmma.store.d.sync"],
    },
    Expected {
        kernel: "linear::kernels::wmma::wmma::Wmma",
        form: "element: F16",
        instructions: &["wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32"],
    },
    Expected {
        kernel: "attention::mma::mma::Mma",
        form: "",
        instructions: &[
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            "ldmatrix.sync.aligned.m8n8.x4.shared",
            "ldmatrix.sync.aligned.m8n8.x4.trans",
            "cp.async.cg.shared::cta.global",
            "ex2.approx.ftz.f32",
            "cvt.rn.f16x2.f32",
        ],
    },
    Expected {
        kernel: "attention::mma::mma::Mma",
        form: "masked: true",
        instructions: &["popc.", "ldmatrix.sync.aligned.m8n8.x4.shared", "cp.async.cg.shared::cta.global"],
    },
    Expected { kernel: "attention::decode::decode::Decode", form: "", instructions: &["ex2.approx.ftz.f32"] },
    Expected {
        kernel: "attention::joined::decode_joined::DecodeJoined",
        form: "",
        instructions: &["ex2.approx.ftz.f32", "membar.gl", "atom.global"],
    },
    Expected {
        kernel: "attention::joined::decode_joined::DecodeJoined",
        form: "codes: true",
        instructions: &["prmt.b32"],
    },
    // `dp4a` is used in the forms for three or more rows of codes.
    Expected {
        kernel: "linear::kernels::bitmap::bitmap::Bitmap",
        form: "",
        instructions: &["popc.", "dp4a."],
    },
    Expected { kernel: "popcount::trit_dots::TritDots", form: "", instructions: &["popc."] },
    Expected { kernel: "probe::dot_bytes::DotBytes", form: "", instructions: &["dp4a."] },
    Expected {
        kernel: "probe::multiply_bytes::MultiplyBytes",
        form: "",
        instructions: &["mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"],
    },
    Expected {
        kernel: "probe::multiply_halves::MultiplyHalves",
        form: "",
        instructions: &["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"],
    },
    Expected { kernel: "vsa::bundle::nonzeros::Nonzeros", form: "", instructions: &["popc."] },
];

/// A kernel with an occupancy below one half, or with register spills.
pub(crate) struct Tight {
    /// The end of the kernel's path.
    pub(crate) kernel: &'static str,
    /// A substring of the form's text; empty for all forms without a row before.
    pub(crate) form: &'static str,
    /// Minimum occupancy on any CUDA target.
    pub(crate) occupancy: f64,
    /// Maximum bytes of register spills per unit.
    pub(crate) spilled: u32,
    /// Reason why this is intended or accepted.
    pub(crate) reason: &'static str,
}

/// Kernels with an accepted occupancy below one half, or accepted spills.
pub(crate) const TIGHT: &[Tight] = &[
    Tight {
        kernel: "linear::kernels::mma::mma::Mma",
        form: "",
        // Four planes where a small matrix is one cube per multiprocessor, whatever its memory.
        occupancy: 0.06,
        spilled: 64,
        reason: "sums of up to 64 rows by 64 codes per plane stay in registers; steps that are copied to shared memory while \
                 one is multiplied hide the latency that more warps would",
    },
    Tight {
        kernel: "linear::kernels::wmma::wmma::Wmma",
        form: "",
        occupancy: 0.12,
        spilled: 0,
        reason: "one or two planes per cube in these cases; only CUDA before 8.0 uses it, with four planes",
    },
    Tight {
        kernel: "linear::kernels::decode::decode::Decode",
        form: "",
        occupancy: 0.16,
        spilled: 40,
        reason: "16 sums per row of codes stay in registers; forms of four rows and more are for devices without matrix \
                 instructions, and forms without splits are cubes of one plane, for columns too few to split",
    },
    Tight {
        kernel: "linear::kernels::base3::base3::Base3",
        form: "",
        occupancy: 0.18,
        spilled: 0,
        reason: "as the decode kernel, plus twenty unpacked words; the lowest is for sixteen rows of codes \
                 without splits, for columns too few to split",
    },
    Tight {
        kernel: "linear::kernels::tiled::tiled::Tiled",
        form: "",
        occupancy: 0.12,
        spilled: 72,
        reason: "the portable path keeps 32 sums per unit and 12.7 KB of shared memory; CUDA prefers matrix instructions",
    },
    Tight {
        kernel: "linear::kernels::dense::dense_decode::DenseDecode",
        form: "",
        occupancy: 0.43,
        spilled: 0,
        reason: "sums of sixteen rows stay in registers",
    },
    Tight {
        kernel: "popcount::trit_dots::TritDots",
        form: "",
        occupancy: 0.31,
        spilled: 0,
        reason: "a tile of sums stays in registers, so that each word is read once for all of them",
    },
    Tight {
        kernel: "linear::kernels::dense_mma::dense_mma::DenseMma",
        form: "",
        // A plane for up to 32 tokens.
        occupancy: 0.02,
        spilled: 0,
        reason: "sums of 64 x 32 outputs per plane stay in registers; shared memory has eight steps where planes are few",
    },
    Tight {
        kernel: "attention::mma::mma::Mma",
        form: "masked: true",
        occupancy: 0.08,
        spilled: 104,
        reason: "as without a mask, and the state of the walk over the mask; heads of 128, which have the most sums, spill nothing",
    },
    Tight {
        kernel: "attention::mma::mma::Mma",
        form: "",
        // Two planes for short prompts.
        occupancy: 0.08,
        spilled: 40,
        reason: "eight planes per multiprocessor by design, in two cubes: the sums of 16 x head, the scores of 16 x 64 and the \
                 queries stay in registers",
    },
    Tight {
        kernel: "attention::decode::decode::Decode",
        form: "",
        occupancy: 0.12,
        spilled: 40,
        reason: "queries and sums of four heads, and the next keys and values stay in registers: bytes in flight per warp \
                 instead of warps",
    },
    Tight {
        kernel: "attention::decode::decode_several::DecodeSeveral",
        form: "codes: true",
        occupancy: 0.12,
        spilled: 0,
        reason: "as the decode kernel, with twice as many columns per unit, so that a unit loads 16 bytes",
    },
    Tight {
        kernel: "attention::decode::decode_several::DecodeSeveral",
        form: "",
        occupancy: 0.16,
        spilled: 0,
        reason: "as the decode kernel",
    },
    Tight {
        kernel: "attention::joined::decode_joined::DecodeJoined",
        form: "chosen: true",
        occupancy: 0.16,
        spilled: 16,
        reason: "as the decode kernel, and the places of the next keys, which are looked up",
    },
    Tight {
        kernel: "attention::joined::decode_joined::DecodeJoined",
        form: "codes: true",
        occupancy: 0.12,
        spilled: 0,
        reason: "as the decode kernel, with twice as many columns per unit, so that a unit loads 16 bytes",
    },
    Tight {
        kernel: "attention::joined::decode_joined::DecodeJoined",
        form: "",
        occupancy: 0.18,
        spilled: 16,
        reason: "as the decode kernel",
    },
    Tight {
        kernel: "attention::joined::decode_several_joined::DecodeSeveralJoined",
        form: "codes: true",
        occupancy: 0.12,
        spilled: 0,
        reason: "as the decode kernel, with twice as many columns per unit, so that a unit loads 16 bytes",
    },
    Tight {
        kernel: "attention::joined::decode_several_joined::DecodeSeveralJoined",
        form: "",
        occupancy: 0.18,
        spilled: 16,
        reason: "as the decode kernel",
    },
    Tight {
        kernel: "attention::prefill::prefill::Prefill",
        form: "",
        occupancy: 0.25,
        spilled: 120,
        reason: "the portable path keeps a tile of scores in registers and 15 to 23 KB in shared memory; CUDA prefers matrix \
                 instructions if the cache is FP16",
    },
    Tight {
        kernel: "grad::product::product::Product",
        form: "",
        occupancy: 0.5,
        spilled: 24,
        reason: "sums of a tile stay in registers",
    },
    Tight {
        kernel: "grad::attention_back::queries::Queries",
        form: "",
        occupancy: 0.5,
        spilled: 32,
        reason: "gradients of a tile of queries stay in registers",
    },
    Tight {
        kernel: "grad::attention_back::keys_values::KeysValues",
        form: "",
        occupancy: 0.5,
        spilled: 32,
        reason: "gradients of a tile of keys and values stay in registers",
    },
    Tight {
        kernel: "ops::top::kernel::top::Top",
        form: "",
        occupancy: 0.5,
        spilled: 32,
        reason: "the candidates of a unit are a small array that one compiler places in local memory; runs once per token",
    },
];

/// Whether a kernel's path ends with `end`, at the start of a segment.
pub(crate) fn is_kernel(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with("::"))
}

/// Whether a target's name is in a list that may use a trailing `*`.
pub(crate) fn is_listed(target: &str, list: &[&str]) -> bool {
    list.iter().any(|&entry| match entry.strip_suffix('*') {
        Some(start) => target.starts_with(start),
        None => target == entry,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_match_whole_segments_and_starts_of_targets() {
        let path = "trike_cube::linear::decode::kernel::decode::Decode";
        assert!(is_kernel(path, "decode::Decode") && is_kernel(path, path));
        assert!(!is_kernel(path, "ecode::Decode") && !is_kernel(path, "decode"));
        assert!(is_listed("cuda-sm80", &["cuda*"]) && is_listed("metal", &["spirv", "metal"]));
        assert!(!is_listed("wgsl-minimal", &["wgsl"]) && is_listed("wgsl-minimal", &["wgsl*"]));
    }
}

//! What is expected of the compiled kernels, as tables: the instructions that make a kernel worth its name, the targets that
//! cannot have it, and the reasons for a low occupancy.
//!
//! A row that nothing needs any more fails like a missing one.

/// A kernel that some targets never launch, or that does not compile for them.
pub(crate) struct Unsupported {
    /// The end of the kernel's path.
    pub(crate) kernel: &'static str,
    /// Names of targets; a trailing `*` stands for the rest.
    pub(crate) targets: &'static [&'static str],
    /// The missing feature.
    pub(crate) feature: &'static str,
}

/// Every pair of kernel and target that is not compiled.
pub(crate) const UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        kernel: "linear::kernels::mma::mma::Mma",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on bytes, s8 m16n8k32",
    },
    Unsupported {
        kernel: "linear::kernels::wmma::wmma::Wmma",
        targets: &["hip-gfx942", "hip-gfx1100", "metal", "wgsl*"],
        feature: "cooperative matrices of bytes",
    },
    Unsupported {
        kernel: "attention::mma::mma::Mma",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on halves, f16 m16n8k16, in planes of 32",
    },
    Unsupported {
        kernel: "probe::multiply_bytes::MultiplyBytes",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on bytes, s8 m16n8k32",
    },
    Unsupported {
        kernel: "probe::multiply_halves::MultiplyHalves",
        targets: &["hip*", "metal", "spirv", "wgsl*"],
        feature: "the matrix instruction on halves, f16 m16n8k16, in planes of 32",
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
        feature: "ten storage buffers for the kernel that leaves the sums",
    },
    Unsupported {
        kernel: "linear::kernels::bitmap::bitmap::Bitmap",
        targets: &["wgsl-minimal"],
        feature: "eight storage buffers",
    },
];

/// Instructions that the PTX of a kernel contains, on every CUDA target that launches it.
pub(crate) struct Expected {
    /// The end of the kernel's path.
    pub(crate) kernel: &'static str,
    /// A part of the form's text, where only some forms are meant.
    pub(crate) form: &'static str,
    /// Beginnings of instructions; at least one of these forms of the kernel has each of them on each target.
    pub(crate) instructions: &'static [&'static str],
}

/// The kernels that are there for an instruction.
pub(crate) const EXPECTED: &[Expected] = &[
    Expected { kernel: "linear::kernels::decode::decode::Decode", form: "", instructions: &["dp4a."] },
    Expected { kernel: "linear::kernels::tiled::tiled::Tiled", form: "", instructions: &["dp4a."] },
    Expected { kernel: "linear::kernels::base3::base3::Base3", form: "", instructions: &["dp4a."] },
    Expected {
        kernel: "linear::kernels::mma::mma::Mma",
        form: "",
        instructions: &["mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"],
    },
    Expected {
        kernel: "linear::kernels::mma::mma::Mma",
        form: "staging: Async",
        instructions: &["cp.async.cg.shared::cta.global", "cp.async.commit_group", "cp.async.wait_group"],
    },
    Expected {
        kernel: "linear::kernels::wmma::wmma::Wmma",
        form: "",
        instructions: &["wmma.mma.sync.aligned.row.col.m", "wmma.load.a.sync", "wmma.store.d.sync"],
    },
    Expected {
        kernel: "attention::mma::mma::Mma",
        form: "",
        instructions: &["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"],
    },
    // `dp4a` is in the forms for three rows of codes and more.
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

/// A kernel whose cubes fill less than half of a multiprocessor, or whose units spill.
pub(crate) struct Tight {
    /// The end of the kernel's path.
    pub(crate) kernel: &'static str,
    /// The smallest share of warps, on any CUDA target.
    pub(crate) occupancy: f64,
    /// The most bytes that a unit spills.
    pub(crate) spilled: u32,
    /// Why that is wanted, or accepted.
    pub(crate) reason: &'static str,
}

/// The kernels with a reason for less than half of the warps, or for spilling.
pub(crate) const TIGHT: &[Tight] = &[
    Tight {
        kernel: "linear::kernels::mma::mma::Mma",
        occupancy: 0.12,
        spilled: 40,
        reason: "sums and operands of 64 rows by 32 codes a plane stay in registers; the second buffer in shared memory and \
                 weights loaded a block ahead hide the latency that more warps would",
    },
    Tight {
        kernel: "linear::kernels::wmma::wmma::Wmma",
        occupancy: 0.12,
        spilled: 0,
        reason: "one or two planes a cube in the tables' cases; CUDA before 8.0 alone uses it, with four planes",
    },
    Tight {
        kernel: "linear::kernels::decode::decode::Decode",
        occupancy: 0.16,
        spilled: 40,
        reason: "16 sums for each row of codes stay in registers; forms of four rows and more are for devices without matrix \
                 instructions, and forms without splits are cubes of one plane, for columns too few to split",
    },
    Tight {
        kernel: "linear::kernels::base3::base3::Base3",
        occupancy: 0.18,
        spilled: 0,
        reason: "as the decode kernel, whose sums it keeps beside twenty unpacked words; the least are sixteen rows of codes \
                 without splits, for columns too few to split",
    },
    Tight {
        kernel: "linear::kernels::tiled::tiled::Tiled",
        occupancy: 0.12,
        spilled: 72,
        reason: "the portable path keeps 32 sums a unit and 12.7 KB of shared memory; CUDA prefers matrix instructions",
    },
    Tight {
        kernel: "linear::kernels::dense::dense_decode::DenseDecode",
        occupancy: 0.43,
        spilled: 0,
        reason: "sums of sixteen rows stay in registers",
    },
    Tight {
        kernel: "popcount::trit_dots::TritDots",
        occupancy: 0.31,
        spilled: 0,
        reason: "a square of sums stays in registers, so that each word is read once for all of them",
    },
    Tight {
        kernel: "attention::mma::mma::Mma",
        // Six planes for three query heads of a key head; two planes for short prompts, 37 KB of shared memory a cube.
        occupancy: 0.08,
        spilled: 32,
        reason: "one cube of eight planes a multiprocessor on purpose: the sums of 16 x head, the scores of 16 x 64 and the \
                 next tile stay in registers",
    },
    Tight {
        kernel: "attention::decode::decode::Decode",
        occupancy: 0.25,
        spilled: 40,
        reason: "sums of four heads and their partial dot products stay in registers",
    },
    Tight {
        kernel: "attention::prefill::prefill::Prefill",
        occupancy: 0.31,
        spilled: 120,
        reason: "the portable path keeps a tile of scores in registers and 15 KB in shared memory; CUDA prefers matrix \
                 instructions where the cache holds halves",
    },
    Tight {
        kernel: "ops::top::kernel::top::Top",
        occupancy: 0.5,
        spilled: 32,
        reason: "the candidates of a unit are a small array that one compiler puts into memory; a token is sampled once",
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

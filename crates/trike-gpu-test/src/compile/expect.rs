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
pub(crate) const UNSUPPORTED: &[Unsupported] = &[];

/// Instructions that the PTX of a kernel contains, on every CUDA target that launches it.
pub(crate) struct Expected {
    /// The end of the kernel's path.
    pub(crate) kernel: &'static str,
    /// Beginnings of instructions; at least one variant of the kernel has each of them on each target.
    pub(crate) instructions: &'static [&'static str],
}

/// The kernels that are there for an instruction.
pub(crate) const EXPECTED: &[Expected] = &[];

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
pub(crate) const TIGHT: &[Tight] = &[];

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

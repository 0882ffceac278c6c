//! Families of devices and their rates.

use trike_cube::Family;

#[test]
fn families_are_found_by_architecture_and_by_name() {
    for (compiled_for, name, family) in [
        ("ptx_sm80", "", Family::Ampere),
        ("ptx_sm86", "", Family::Ada),
        ("ptx_sm89", "", Family::Ada),
        ("ptx_sm90", "NVIDIA H100 PCIe", Family::Hopper),
        ("recording_cuda-sm90a", "", Family::Hopper),
        ("ptx_sm100", "", Family::Blackwell),
        ("recording_cuda-sm120a", "", Family::BlackwellRtx),
        ("ptx_sm75", "Tesla T4", Family::Other),
        ("hip-kernel_gfx908", "", Family::Cdna),
        ("hip-kernel_gfx90a", "", Family::Cdna),
        ("hip-kernel_gfx942", "", Family::Cdna),
        ("hip-kernel_gfx1030", "", Family::Rdna),
        ("recording_hip-gfx1201", "", Family::Rdna),
        ("spirv", "NVIDIA GeForce RTX 4090", Family::Ada),
        ("wgsl", "NVIDIA H200", Family::Hopper),
        ("spirv", "AMD Radeon RX 7900 XTX (RADV NAVI31)", Family::Rdna),
        ("spirv", "llvmpipe (LLVM 15.0.6, 256 bits)", Family::Other),
        ("", "", Family::Other),
    ] {
        assert_eq!(Family::of(compiled_for, name), family, "{compiled_for} {name}");
    }
}

#[test]
fn rates_are_possible() {
    for family in [
        Family::Ampere,
        Family::Ada,
        Family::Hopper,
        Family::Blackwell,
        Family::BlackwellRtx,
        Family::Cdna,
        Family::Rdna,
        Family::Other,
    ] {
        let rates = family.rates();
        assert!(rates.memory <= rates.cache && rates.cache <= rates.loads, "{family:?}");
        assert!(rates.latency > 0.0 && rates.launch > rates.join && rates.matrix > rates.issue, "{family:?}");
    }
}

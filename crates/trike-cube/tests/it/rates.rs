//! Families of devices and their rates.

use trike_cube::DeviceFamily;

#[test]
fn families_are_found_by_architecture_and_by_name() {
    for (compiled_for, name, family) in [
        ("ptx_sm80", "", DeviceFamily::Ampere),
        ("ptx_sm86", "", DeviceFamily::Ada),
        ("ptx_sm89", "", DeviceFamily::Ada),
        ("ptx_sm90", "NVIDIA H100 PCIe", DeviceFamily::Hopper),
        ("recording_cuda-sm90a", "", DeviceFamily::Hopper),
        ("ptx_sm100", "", DeviceFamily::Blackwell),
        ("recording_cuda-sm120a", "", DeviceFamily::BlackwellRtx),
        ("ptx_sm75", "Tesla T4", DeviceFamily::Other),
        ("hip-kernel_gfx908", "", DeviceFamily::Cdna),
        ("hip-kernel_gfx90a", "", DeviceFamily::Cdna),
        ("hip-kernel_gfx942", "", DeviceFamily::Cdna),
        ("hip-kernel_gfx1030", "", DeviceFamily::Rdna),
        ("recording_hip-gfx1201", "", DeviceFamily::Rdna),
        ("spirv", "NVIDIA GeForce RTX 4090", DeviceFamily::Ada),
        ("wgsl", "NVIDIA H200", DeviceFamily::Hopper),
        ("spirv", "AMD Radeon RX 7900 XTX (RADV NAVI31)", DeviceFamily::Rdna),
        ("spirv", "llvmpipe (LLVM 15.0.6, 256 bits)", DeviceFamily::Other),
        ("", "", DeviceFamily::Other),
    ] {
        assert_eq!(DeviceFamily::of(compiled_for, name), family, "{compiled_for} {name}");
    }
}

#[test]
fn rates_are_possible() {
    for family in [
        DeviceFamily::Ampere,
        DeviceFamily::Ada,
        DeviceFamily::Hopper,
        DeviceFamily::Blackwell,
        DeviceFamily::BlackwellRtx,
        DeviceFamily::Cdna,
        DeviceFamily::Rdna,
        DeviceFamily::Other,
    ] {
        let rates = family.rates();
        assert!(rates.memory <= rates.cache && rates.cache <= rates.loads, "{family:?}");
        assert!(rates.latency > 0.0 && rates.launch > rates.join && rates.matrix > rates.issue, "{family:?}");
    }
}

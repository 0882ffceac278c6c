//! What a device can do, asked once.

use cubecl::features::{MmaConfig, Plane, TypeUsage};
use cubecl::ir::{DeviceProperties, ElemType, FloatKind, IntKind};

/// Whether kernels may exchange values inside of a plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Planes {
    /// When the runtime says that the device can.
    #[default]
    Advertised,
    /// Always. CubeCL says that no software Vulkan driver can; lavapipe does, and tests use it.
    Forced,
    /// Never: the kernels for devices without planes.
    Off,
}

/// How a device runs recorded launches again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Graphs {
    /// It cannot.
    None,
    /// The runtime goes through launches that it has prepared, and adds each of them to its queue.
    Software,
    /// The driver has them as one.
    Hardware,
}

/// What plans need to know about a device.
///
/// Kernels never ask for features: plans do, and put the answer into the blueprint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the device.
    pub name: String,
    /// Whether the device is a driver that computes on the host.
    pub software: bool,
    /// The fewest and the most units of a plane (a subgroup, warp or wave), or `None` when units cannot exchange values
    /// inside of a plane.
    pub planes: Option<(u32, u32)>,
    /// Bytes of shared memory of a cube, at most.
    pub max_shared_bytes: usize,
    /// Units of a cube, at most.
    pub max_units: u32,
    /// Units of a cube along x, y and z, at most.
    pub max_unit_sides: [u32; 3],
    /// Cubes along x, y and z, at most.
    pub max_cubes: [u32; 3],
    /// Buffers of a kernel, at most.
    pub max_bindings: u32,
    /// Bytes of one allocation, at most.
    pub max_buffer_bytes: u64,
    /// Bytes to which parts of a buffer are aligned.
    pub alignment: u64,
    /// Bytes of memory in all, where the runtime says so.
    pub memory_bytes: Option<u64>,
    /// Whether f16 can be stored and computed with.
    pub f16: bool,
    /// Whether bf16 can be stored and computed with.
    pub bf16: bool,
    /// Whether bytes can be stored in buffers.
    pub i8: bool,
    /// Whether planes multiply 16 x 32 by 32 x 8 bytes in one instruction (`mma` s8 m16n8k32).
    pub int8_mma: bool,
    /// Shapes `[m, n, k]` of bytes that planes multiply as cooperative matrices, `m x k` by `k x n`, in the order in which plans
    /// prefer them.
    pub int8_cmma: Vec<[usize; 3]>,
    /// Whether planes multiply 16 x 16 by 16 x 8 halves into floats in one instruction (`mma` f16 m16n8k16).
    pub f16_mma: bool,
    /// Whether copies from global to shared memory can go on beside the arithmetic.
    pub async_copy: bool,
    /// How recorded launches run again.
    pub graphs: Graphs,
    /// Processors that run cubes side by side, where the runtime says so.
    pub multiprocessors: Option<u32>,
    /// Bytes of the last cache, where the runtime says so.
    pub cache_bytes: Option<usize>,
}

impl Capabilities {
    pub(crate) fn new(properties: &DeviceProperties, software: bool, planes: Planes) -> Self {
        let hardware = &properties.hardware;
        let features = &properties.features;
        let advertised = features.plane.contains(Plane::Ops);
        let used = match planes {
            Planes::Advertised => advertised,
            Planes::Forced => true,
            Planes::Off => false,
        };
        let full = TypeUsage::Arithmetic | TypeUsage::Buffer | TypeUsage::Conversion;
        let float = |kind| features.type_usage(ElemType::Float(kind)).is_superset(full);
        let i8_type = ElemType::Int(IntKind::I8);
        let mma = |a_type, cd_type, k| {
            let config = MmaConfig { a_type, b_type: a_type, cd_type, m: 16, n: 8, k };
            features.matmul.mma.contains(&config)
        };
        let (x, y, z) = hardware.max_cube_count;
        let (unit_x, unit_y, unit_z) = hardware.max_cube_dim;
        Self {
            name: properties.identity.name.clone(),
            software,
            planes: used.then_some((hardware.plane_size_min, hardware.plane_size_max)),
            max_shared_bytes: hardware.max_shared_memory_size,
            max_units: hardware.max_units_per_cube,
            max_unit_sides: [unit_x, unit_y, unit_z],
            max_cubes: [x, y, z],
            max_bindings: hardware.max_bindings,
            max_buffer_bytes: properties.memory.max_page_size,
            alignment: properties.memory.alignment,
            memory_bytes: properties.memory.max_memory(),
            f16: float(FloatKind::F16),
            bf16: float(FloatKind::BF16),
            i8: features.type_usage(i8_type).contains(TypeUsage::Buffer),
            int8_mma: mma(i8_type, ElemType::Int(IntKind::I32), 32),
            int8_cmma: cooperative_bytes(properties),
            f16_mma: mma(ElemType::Float(FloatKind::F16), ElemType::Float(FloatKind::F32), 16),
            async_copy: features.copy_async,
            graphs: Graphs::None,
            multiprocessors: hardware.num_streaming_multiprocessors,
            cache_bytes: hardware.last_level_cache_size,
        }
    }

    /// What every device of WebGPU has at least, without planes: for tests of plans.
    #[must_use]
    pub fn smallest() -> Self {
        Self {
            name: "the smallest device".to_owned(),
            software: false,
            planes: None,
            max_shared_bytes: 16384,
            max_units: 256,
            max_unit_sides: [256, 256, 64],
            max_cubes: [65535; 3],
            max_bindings: 8,
            max_buffer_bytes: 128 << 20,
            alignment: 256,
            memory_bytes: None,
            f16: false,
            bf16: false,
            i8: false,
            int8_mma: false,
            int8_cmma: Vec::new(),
            f16_mma: false,
            async_copy: false,
            graphs: Graphs::None,
            multiprocessors: None,
            cache_bytes: None,
        }
    }
}

/// The shapes for cooperative matrices of signed bytes with sums of 32 bits: squares first, and of them those with most columns.
fn cooperative_bytes(properties: &DeviceProperties) -> Vec<[usize; 3]> {
    let (byte, sum) = (ElemType::Int(IntKind::I8), ElemType::Int(IntKind::I32));
    let of_bytes = properties
        .features
        .matmul
        .cmma
        .iter()
        .filter(|config| config.a_type == byte && config.b_type == byte && config.cd_type == sum);
    let mut shapes: Vec<[usize; 3]> =
        of_bytes.map(|config| [config.m, config.n, config.k].map(|side| side as usize)).collect();
    shapes.sort_unstable_by_key(|&[m, n, k]| (m != n, std::cmp::Reverse(k), m, n));
    shapes.dedup();
    shapes
}

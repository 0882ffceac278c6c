//! Features and limits of a device, queried once.

use cubecl::features::{MmaConfig, Plane, TypeUsage};
use cubecl::ir::{DeviceProperties, ElemType, FloatKind, IntKind};

use crate::rates::DeviceFamily;

/// Use of plane operations (exchange of values within a plane).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Planes {
    /// If the runtime advertises them.
    #[default]
    Advertised,
    /// Always. CubeCL does not advertise them for software Vulkan drivers, but lavapipe supports them, and tests use it.
    Forced,
    /// Never: selects the kernels for devices without planes.
    Off,
}

/// Support for replaying recorded launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Graphs {
    /// Not supported.
    None,
    /// The runtime iterates over prepared launches and enqueues each of them.
    Software,
    /// The driver replays them as one graph.
    Hardware,
}

/// Properties of a device that plans depend on.
///
/// Kernels never query features: plans do, and put the result into the blueprint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The name of the device.
    pub name: String,
    /// The device family, which determines the assumed rates.
    pub family: DeviceFamily,
    /// True for a software driver, which computes on the host CPU.
    pub software: bool,
    /// Minimum and maximum units per plane (subgroup, warp or wave), or `None` without plane operations.
    pub planes: Option<(u32, u32)>,
    /// Maximum shared memory per cube, in bytes.
    pub max_shared_bytes: usize,
    /// Maximum units per cube.
    pub max_units: u32,
    /// Maximum units per cube along x, y and z.
    pub max_unit_sides: [u32; 3],
    /// Maximum cubes along x, y and z.
    pub max_cubes: [u32; 3],
    /// Maximum buffers per kernel.
    pub max_bindings: u32,
    /// Maximum bytes of one allocation.
    pub max_buffer_bytes: u64,
    /// Alignment of buffer views, in bytes.
    pub alignment: u64,
    /// Total memory in bytes, if the runtime reports it.
    pub memory_bytes: Option<u64>,
    /// Storage and arithmetic in f16.
    pub f16: bool,
    /// Storage and arithmetic in bf16.
    pub bf16: bool,
    /// 8-bit integers in buffers.
    pub i8: bool,
    /// Plane instruction for 16 x 32 by 32 x 8 int8 (`mma` s8 m16n8k32).
    pub int8_mma: bool,
    /// Shapes `[m, n, k]` of int8 cooperative matrices, `m x k` by `k x n`, in the plans' order of preference.
    pub int8_cmma: Vec<[usize; 3]>,
    /// Shapes `[m, n, k]` of f16 cooperative matrices with f32 accumulation, in the plans' order of preference.
    pub f16_cmma: Vec<[usize; 3]>,
    /// Plane instruction for 16 x 8 by 8 x 8 tf32 with f32 accumulation (`mma` tf32 m16n8k8).
    pub tf32_mma: bool,
    /// Plane instruction for 16 x 16 by 16 x 8 f16 with f32 accumulation (`mma` f16 m16n8k16).
    pub f16_mma: bool,
    /// Asynchronous copies from global to shared memory.
    pub async_copy: bool,
    /// Support for PTX instructions in kernels, i.e. CUDA.
    pub ptx: bool,
    /// Maximum elements of a vector.
    pub max_vector: usize,
    /// Support for replaying recorded launches.
    pub graphs: Graphs,
    /// Number of multiprocessors, if the runtime reports it.
    pub multiprocessors: Option<u32>,
    /// Bytes of the last-level cache, if the runtime reports it.
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
            family: DeviceFamily::of(&properties.identity.fingerprint, &properties.identity.name),
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
            int8_cmma: cooperative(properties, ElemType::Int(IntKind::I8), ElemType::Int(IntKind::I32)),
            f16_cmma: cooperative(
                properties,
                ElemType::Float(FloatKind::F16),
                ElemType::Float(FloatKind::F32),
            ),
            tf32_mma: mma(ElemType::Float(FloatKind::TF32), ElemType::Float(FloatKind::F32), 8),
            f16_mma: mma(ElemType::Float(FloatKind::F16), ElemType::Float(FloatKind::F32), 16),
            async_copy: features.copy_async,
            ptx: false,
            max_vector: hardware.max_vector_size,
            graphs: Graphs::None,
            multiprocessors: hardware.num_streaming_multiprocessors,
            cache_bytes: hardware.last_level_cache_size,
        }
    }

    /// Minimum limits of WebGPU, without planes: for tests of plans.
    #[must_use]
    pub fn smallest() -> Self {
        Self {
            name: "the smallest device".to_owned(),
            family: DeviceFamily::Other,
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
            f16_cmma: Vec::new(),
            tf32_mma: false,
            f16_mma: false,
            async_copy: false,
            ptx: false,
            max_vector: 4,
            graphs: Graphs::None,
            multiprocessors: None,
            cache_bytes: None,
        }
    }
}

/// Shapes of cooperative matrices with this element and accumulator type: square ones first, in descending order of `k`.
fn cooperative(properties: &DeviceProperties, element: ElemType, sum: ElemType) -> Vec<[usize; 3]> {
    let of_type = properties
        .features
        .matmul
        .cmma
        .iter()
        .filter(|config| config.a_type == element && config.b_type == element && config.cd_type == sum);
    let mut shapes: Vec<[usize; 3]> =
        of_type.map(|config| [config.m, config.n, config.k].map(|side| side as usize)).collect();
    shapes.sort_unstable_by_key(|&[m, n, k]| (m != n, std::cmp::Reverse(k), m, n));
    shapes.dedup();
    shapes
}

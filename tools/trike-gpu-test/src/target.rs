//! The devices that kernels are compiled for, with the properties that the runtimes of CubeCL 0.11.3 report for them.
//!
//! The properties are copied from the initialization code of the runtimes (`runtime.rs` of `cubecl-cuda`, `cubecl-hip`
//! and `cubecl-wgpu`), because that code needs a driver. Each entry is one device of a family: NVIDIA data-centre and
//! desktop GPUs of three generations, AMD GPUs of several generations with wavefronts of 64 and of 32, an Apple GPU, a
//! Vulkan GPU with matrix instructions, and WebGPU with and without extensions.

use cubecl::cmma::MatrixLayout;
use cubecl::ir::features::{AtomicUsage, Features, MmaConfig, Plane, Tma, TypeUsage};
use cubecl::ir::{
    AddressType, ContiguousElements, DeviceIdentity, DeviceProperties, ElemType, FloatKind,
    HardwareProperties, IntKind, MemoryDeviceProperties, MmaProperties, OpaqueType, TargetProperties, Type,
    UIntKind, VectorSize, amd::AMDArchitecture, amd::AmdWmma,
};
use cubecl::server::{Handle, MemoryLayout, MemoryLayoutDescriptor, MemoryLayoutPolicy};
use cubecl_common::device::ServiceId;
use cubecl_common::profile::TimingMethod;
use cubecl_cpp::cuda::{
    arch::CudaArchitecture, mma::CudaCmmaCompiler, mma::manual::contiguous_elements_cuda,
};
use cubecl_cpp::hip::mma::{
    HipCmmaCompiler, manual::contiguous_elements_rdna3, manual::contiguous_elements_rdna4,
};
use cubecl_cpp::metal::{arch::MetalArchitecture, supported_cmma_combinations_metal};
use cubecl_cpp::shared::{register_mma_features, register_scaled_mma_features, register_wmma_features};
use cubecl_environment::stream::StreamId;
use cubecl_server::allocator::{ContiguousMemoryLayoutPolicy, PitchedMemoryLayoutPolicy};

/// One kind of device to compile for.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name in reports and in the table of unsupported pairs.
    pub name: &'static str,
    /// The code generator, with its parameters.
    pub family: Family,
}

/// The code generator of a target.
#[derive(Clone, Copy, Debug)]
pub enum Family {
    /// CUDA C++ for a compute capability (80 is 8.0).
    Cuda(CudaSm),
    /// HIP C++ for an architecture.
    Hip(AMDArchitecture),
    /// Metal's shading language.
    Metal,
    /// SPIR-V.
    Vulkan,
    /// WGSL with 16-bit floats and subgroups, as supported by native drivers.
    WebGpu,
    /// WGSL with only the minimum of the standard.
    WebGpuMinimal,
}

/// Properties of a streaming multiprocessor by compute capability, from CUDA's programming guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaSm {
    /// Compute capability times ten.
    pub version: u32,
    /// Number of multiprocessors of the representative device.
    pub count: u32,
    /// Maximum resident warps per multiprocessor.
    pub warps: u32,
    /// Maximum resident cubes per multiprocessor.
    pub cubes: u32,
    /// Shared memory per multiprocessor, in bytes.
    pub shared: u32,
    /// Maximum shared memory per cube, in bytes.
    pub shared_of_cube: u32,
}

/// A100.
pub const SM_80: CudaSm =
    CudaSm { version: 80, count: 108, warps: 64, cubes: 32, shared: 167_936, shared_of_cube: 166_912 };
/// H100 and H200.
pub const SM_90: CudaSm =
    CudaSm { version: 90, count: 132, warps: 64, cubes: 32, shared: 233_472, shared_of_cube: 232_448 };
/// RTX 50.
pub const SM_120: CudaSm =
    CudaSm { version: 120, count: 170, warps: 48, cubes: 24, shared: 102_400, shared_of_cube: 101_376 };

impl CudaSm {
    /// The architecture name that CubeCL's runtime passes to NVRTC: with architecture-specific instructions from 9.0
    /// on.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.version, if self.version >= 90 { "a" } else { "" })
    }

    /// Offset of a kernel's arguments in the constant bank.
    pub(crate) fn arguments_at(&self) -> usize {
        match self.version {
            ..90 => 0x160,
            90..100 => 0x210,
            100.. => 0x380,
        }
    }
}

impl Target {
    /// All targets, CUDA first.
    pub fn all() -> Vec<Self> {
        let of = |name, family| Self { name, family };
        vec![
            of("cuda-sm80", Family::Cuda(SM_80)),
            of("cuda-sm90a", Family::Cuda(SM_90)),
            of("cuda-sm120a", Family::Cuda(SM_120)),
            of("hip-gfx942", Family::Hip(AMDArchitecture::GFX94)),
            of("hip-gfx1100", Family::Hip(AMDArchitecture::GFX11)),
            of("hip-gfx1201", Family::Hip(AMDArchitecture::GFX12)),
            of("metal", Family::Metal),
            of("spirv", Family::Vulkan),
            of("wgsl", Family::WebGpu),
            of("wgsl-minimal", Family::WebGpuMinimal),
        ]
    }

    /// The runtime's name, as reported by its clients.
    pub fn runtime(&self) -> &'static str {
        match self.family {
            Family::Cuda(_) => "cuda",
            Family::Hip(_) => "hip",
            Family::Metal => "wgpu<msl>",
            Family::Vulkan => "wgpu<spirv>",
            Family::WebGpu | Family::WebGpuMinimal => "wgpu<wgsl>",
        }
    }

    /// Features and limits of the device.
    pub fn properties(&self) -> DeviceProperties {
        let mut p = DeviceProperties::new(
            Features::default(),
            self.memory(),
            self.hardware(),
            TimingMethod::Device,
            DeviceIdentity {
                name: format!("recording {}", self.name),
                fingerprint: format!("recording_{}", self.name),
                physical: None,
            },
        );
        match self.family {
            Family::Cuda(sm) => cuda_features(&mut p, sm.version),
            Family::Hip(arch) => hip_features(&mut p, arch),
            Family::Metal => metal_features(&mut p),
            Family::Vulkan => vulkan_features(&mut p),
            Family::WebGpu => webgpu_features(&mut p, true),
            Family::WebGpuMinimal => webgpu_features(&mut p, false),
        }
        p
    }

    /// Register layout of matrix fragments.
    pub fn target_properties(&self) -> TargetProperties {
        let nvidia_or_amd = |acc, duplication, contiguous| MmaProperties {
            register_size_bits: 32,
            const_plane_size: 32,
            register_layout_a: MatrixLayout::RowMajor,
            register_layout_b: MatrixLayout::ColMajor,
            register_layout_acc: acc,
            register_duplication_a: duplication,
            register_duplication_b: duplication,
            register_duplication_acc: 1,
            contiguous_elements: contiguous,
        };
        let mma = match self.family {
            Family::Cuda(_) => {
                nvidia_or_amd(MatrixLayout::RowMajor, 1, ContiguousElements::new(contiguous_elements_cuda))
            }
            Family::Hip(arch) if arch.wmma_generation() == Some(AmdWmma::Rdna4) => {
                nvidia_or_amd(MatrixLayout::ColMajor, 1, ContiguousElements::new(contiguous_elements_rdna4))
            }
            Family::Hip(_) => {
                nvidia_or_amd(MatrixLayout::ColMajor, 2, ContiguousElements::new(contiguous_elements_rdna3))
            }
            _ => MmaProperties::default(),
        };
        TargetProperties { mma }
    }

    /// Tensor layout of the runtime: with padded rows for CUDA and HIP.
    pub fn layout_policy(&self) -> LayoutPolicy {
        let alignment = self.memory().alignment as usize;
        match self.family {
            Family::Cuda(_) | Family::Hip(_) => {
                LayoutPolicy::Pitched(PitchedMemoryLayoutPolicy::new(alignment))
            }
            _ => LayoutPolicy::Contiguous(ContiguousMemoryLayoutPolicy::new(alignment)),
        }
    }

    fn memory(&self) -> MemoryDeviceProperties {
        const GIB: u64 = 1 << 30;
        match self.family {
            Family::Cuda(_) => MemoryDeviceProperties::new(20 * GIB, 512).with_max_memory(80 * GIB),
            Family::Hip(_) => MemoryDeviceProperties::new(6 * GIB, 256).with_max_memory(24 * GIB),
            Family::Metal => MemoryDeviceProperties::new(16 * GIB, 256).with_max_memory(24 * GIB),
            Family::Vulkan => MemoryDeviceProperties::new(2 * GIB, 64).with_max_memory(16 * GIB),
            // Maximum size of a storage buffer, the only limit that WebGPU reports.
            Family::WebGpu => MemoryDeviceProperties::new(2 * GIB, 256),
            Family::WebGpuMinimal => MemoryDeviceProperties::new(128 << 20, 256),
        }
    }

    fn hardware(&self) -> HardwareProperties {
        let (planes, shared, units) = match self.family {
            Family::Cuda(sm) => ((32, 32), sm.shared_of_cube as usize, 1024),
            Family::Hip(arch) => {
                let plane = arch.plane_dim().unwrap_or(64);
                ((plane, plane), 64 << 10, 1024)
            }
            Family::Metal => ((32, 32), 32 << 10, 1024),
            Family::Vulkan => ((32, 32), 48 << 10, 1024),
            // Intel GPUs select 8 to 32 at compile time.
            Family::WebGpu => ((8, 32), 32 << 10, 1024),
            // CubeCL's defaults if the adapter reports nothing.
            Family::WebGpuMinimal => ((8, 128), 16 << 10, 256),
        };
        let wide = matches!(self.family, Family::Cuda(_) | Family::Hip(_));
        HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: planes.0,
            plane_size_max: planes.1,
            max_bindings: match self.family {
                Family::Cuda(_) | Family::Hip(_) => 1024,
                Family::WebGpuMinimal => 7,
                _ => 30,
            },
            max_shared_memory_size: shared,
            max_cube_count: if wide { (i32::MAX as u32, 65_535, 65_535) } else { (65_535, 65_535, 65_535) },
            max_units_per_cube: units,
            max_cube_dim: (units, units, 64),
            num_streaming_multiprocessors: match self.family {
                Family::Cuda(sm) => Some(sm.count),
                Family::Hip(_) => Some(96),
                _ => None,
            },
            num_tensor_cores: matches!(self.family, Family::Cuda(sm) if sm.version <= 100).then_some(4),
            min_tensor_cores_dim: match self.family {
                Family::Cuda(_) => Some(8),
                Family::Hip(_) | Family::Vulkan => Some(16),
                _ => None,
            },
            num_cpu_cores: None,
            last_level_cache_size: None,
            max_vector_size: if wide { VectorSize::MAX } else { 4 },
            cube_mma_reserved_shared_memory: 0,
        }
    }
}

/// The layout policies of CubeCL's runtimes, as one type.
pub enum LayoutPolicy {
    /// Rows padded to the load width.
    Pitched(PitchedMemoryLayoutPolicy),
    /// No padding.
    Contiguous(ContiguousMemoryLayoutPolicy),
}

impl MemoryLayoutPolicy for LayoutPolicy {
    fn apply(
        &self,
        service: ServiceId,
        stream: StreamId,
        descriptors: &[MemoryLayoutDescriptor],
    ) -> (Handle, Vec<MemoryLayout>) {
        match self {
            Self::Pitched(policy) => policy.apply(service, stream, descriptors),
            Self::Contiguous(policy) => policy.apply(service, stream, descriptors),
        }
    }
}

const F16: ElemType = ElemType::Float(FloatKind::F16);
const BF16: ElemType = ElemType::Float(FloatKind::BF16);
const F32: ElemType = ElemType::Float(FloatKind::F32);
const I8: ElemType = ElemType::Int(IntKind::I8);
const I32: ElemType = ElemType::Int(IntKind::I32);
const U32: ElemType = ElemType::UInt(UIntKind::U32);

fn cuda_features(p: &mut DeviceProperties, version: u32) {
    let arch = CudaArchitecture { version, tensor_cores: true };
    cubecl_cpp::register_supported_types(p);
    p.register_opaque_type(OpaqueType::Barrier);
    p.features.plane = Plane::Ops | Plane::Sync | Plane::NonUniformControlFlow;
    for float in [F16, BF16] {
        p.features.matmul.ldmatrix.insert(float);
        if version >= 90 {
            p.features.matmul.stmatrix.insert(float);
        }
    }
    p.register_type_usage(ElemType::Float(FloatKind::TF32), TypeUsage::Conversion);
    p.features.copy_async = true;
    p.features.memory_reinterpret = true;
    p.features.alignment = true;
    p.features.device_memory_scope = true;
    if version >= 90 {
        p.features.tma.insert(Tma::Base);
        p.register_opaque_type(OpaqueType::TensorMap);
        p.features.cube_cluster = true;
    }
    register_wmma_features(CudaCmmaCompiler::Cpp.supported_cmma_combinations(&arch), p);
    register_mma_features(cubecl_cpp::cuda::supported_mma_combinations(&arch), p);
    register_scaled_mma_features(cubecl_cpp::cuda::supported_scaled_mma_combinations(&arch), p);
}

fn hip_features(p: &mut DeviceProperties, arch: AMDArchitecture) {
    cubecl_cpp::register_supported_types(p);
    p.features.memory_reinterpret = true;
    p.features.alignment = true;
    p.features.device_memory_scope = true;
    p.features.plane = Plane::Ops | Plane::NonUniformControlFlow;
    register_wmma_features(HipCmmaCompiler::RocWmma.supported_cmma_combinations(&arch), p);
    register_mma_features(cubecl_cpp::hip::supported_mma_combinations(&arch), p);
    register_scaled_mma_features(cubecl_cpp::hip::supported_scaled_mma_combinations(&arch), p);
}

fn metal_features(p: &mut DeviceProperties) {
    for address in [AddressType::U32, AddressType::U64] {
        p.register_address_type(address);
    }
    let unsigned = [UIntKind::U8, UIntKind::U16, UIntKind::U32, UIntKind::U64].map(ElemType::UInt);
    let signed = [IntKind::I8, IntKind::I16, IntKind::I32, IntKind::I64].map(ElemType::Int);
    for ty in unsigned.into_iter().chain(signed).chain([ElemType::Index, ElemType::Bool, F16, BF16, F32]) {
        p.register_type_usage(ty, TypeUsage::all());
    }
    for ty in [I32, U32] {
        p.register_atomic_type_usage(Type::atomic(ty), AtomicUsage::all());
    }
    p.register_atomic_type_usage(Type::atomic(F32), AtomicUsage::Add | AtomicUsage::LoadStore);
    register_wmma_features(supported_cmma_combinations_metal(&MetalArchitecture::Metal3), p);
    p.features.alignment = true;
    p.features.device_memory_scope = true;
    p.features.plane = Plane::Ops | Plane::Sync | Plane::NonUniformControlFlow;
}

fn vulkan_features(p: &mut DeviceProperties) {
    p.register_address_type(AddressType::U32);
    let unsigned = [UIntKind::U8, UIntKind::U16, UIntKind::U32, UIntKind::U64].map(ElemType::UInt);
    let signed = [IntKind::I8, IntKind::I16, IntKind::I32, IntKind::I64].map(ElemType::Int);
    for ty in unsigned.into_iter().chain(signed).chain([ElemType::Index, ElemType::Bool, F16, F32]) {
        p.register_type_usage(ty, TypeUsage::all());
    }
    for ty in [I32, U32] {
        p.register_atomic_type_usage(Type::atomic(ty), AtomicUsage::all());
    }
    p.register_atomic_type_usage(
        Type::atomic(F32),
        AtomicUsage::Add | AtomicUsage::LoadStore | AtomicUsage::Exchange,
    );
    p.features.device_memory_scope = true;
    p.features.plane = Plane::Ops | Plane::Sync | Plane::NonUniformControlFlow;
    // Typical subgroup configurations of NVIDIA and AMD drivers.
    for (a_type, cd_type, k) in [(F16, F32, 16), (F16, F16, 16), (I8, I32, 32)] {
        p.features.matmul.cmma.insert(MmaConfig { a_type, b_type: a_type, cd_type, m: 16, n: 16, k });
    }
}

fn webgpu_features(p: &mut DeviceProperties, extensions: bool) {
    p.register_address_type(AddressType::U32);
    for ty in [ElemType::Index, U32, I32, F32, ElemType::Float(FloatKind::Flex32), ElemType::Bool] {
        p.register_type_usage(ty, TypeUsage::all());
    }
    for ty in [I32, U32] {
        p.register_atomic_type_usage(
            Type::atomic(ty),
            AtomicUsage::LoadStore | AtomicUsage::Exchange | AtomicUsage::Add,
        );
    }
    if extensions {
        p.register_type_usage(F16, TypeUsage::all());
        p.features.plane.insert(Plane::Ops);
    }
}

//! Generation of a target's source text from a captured kernel.

use anyhow::{Result, anyhow};
use cubecl::ir::amd::AMDArchitecture;
use cubecl::prelude::KernelDefinition;
use cubecl::{Compiler, VulkanCompilationOptions, WgpuCompilationOptions, define_kernel};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::{Cuda, Hip, Metal};
use cubecl_runtime::kernel::CubeKernel;
use cubecl_spirv::SpirvCompiler;
use cubecl_wgpu::WgslCompiler;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::target::{Family, Target};

/// Output of a code generator.
pub(crate) struct Source {
    /// The text, or the words of SPIR-V as bytes.
    pub(crate) bytes: Vec<u8>,
    /// Dynamic shared memory of the launch in bytes; static declarations in the text are not included.
    pub(crate) dynamic_shared: usize,
}

/// Expands a kernel and generates its source for a target.
///
/// # Errors
/// Errors of the kernel's expansion or of the generator, including panics: generators panic on unsupported
/// instructions.
pub(crate) fn generate(target: &Target, kernel: &dyn CubeKernel) -> Result<Source> {
    let definition = define_kernel(kernel).map_err(|e| first_lines(&e.to_string()))?;
    let generated = catch_unwind(AssertUnwindSafe(|| lower(target, definition)));
    generated.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(anyhow!("the generator panicked: {}", message.as_deref().unwrap_or("without a message")))
    })
}

fn lower(target: &Target, definition: KernelDefinition) -> Result<Source> {
    match target.family {
        Family::Cuda(sm) => {
            let hopper = sm.version >= 90;
            let supports_features = CppSupportedFeatures {
                grid_constants: true,
                clusters: hopper,
                fast_math: true,
                fast_tanh: true,
                elect_sync: hopper,
                dp4a: true,
            };
            cpp::<Cuda>(definition, CompilationOptions { warp_size: 32, supports_features, amd_wmma: None })
        }
        Family::Hip(arch) => cpp::<Hip>(definition, hip_options(arch)),
        Family::Metal => {
            let supports_features = CppSupportedFeatures { fast_math: true, ..Default::default() };
            cpp::<Metal>(definition, CompilationOptions { supports_features, ..Default::default() })
        }
        Family::Vulkan => {
            let kernel = SpirvCompiler.compile(definition, &vulkan_options());
            let kernel = kernel.map_err(|e| first_lines(&e.to_string()))?;
            let bytes = kernel.assembled_module.iter().flat_map(|word| word.to_le_bytes()).collect();
            Ok(Source { bytes, dynamic_shared: 0 })
        }
        Family::WebGpu | Family::WebGpuMinimal => {
            let options = WgpuCompilationOptions::default();
            let shader = WgslCompiler.compile(definition, &options);
            let shader = shader.map_err(|e| first_lines(&e.to_string()))?;
            Ok(Source { bytes: shader.to_string().into_bytes(), dynamic_shared: 0 })
        }
    }
}

fn cpp<T: cubecl_cpp::target::CppTarget>(
    definition: KernelDefinition,
    options: CompilationOptions,
) -> Result<Source>
where
    CppCompiler<T>:
        Compiler<Representation = cubecl_cpp::ComputeKernel, CompilationOptions = CompilationOptions>,
{
    let kernel = CppCompiler::<T>::default().compile(definition, &options);
    let kernel = kernel.map_err(|e| first_lines(&e.to_string()))?;
    Ok(Source { bytes: kernel.source.into_bytes(), dynamic_shared: kernel.shared_memory_size })
}

fn hip_options(arch: AMDArchitecture) -> CompilationOptions {
    CompilationOptions {
        warp_size: arch.plane_dim().unwrap_or(64) as usize,
        supports_features: CppSupportedFeatures { fast_math: true, ..Default::default() },
        amd_wmma: arch.wmma_generation(),
    }
}

fn vulkan_options() -> WgpuCompilationOptions {
    WgpuCompilationOptions {
        supports_u64: true,
        supports_vulkan_compiler: true,
        supports_msl_compiler: false,
        vulkan: VulkanCompilationOptions {
            supports_explicit_smem: true,
            supports_uniform_standard_layout: true,
            supports_dp4a: true,
            max_spirv_version: (1, 6),
            max_vector_size: 4,
            push_constant_size: 256,
            ..Default::default()
        },
    }
}

/// An error of CubeCL without the backtrace and generated source that it contains.
pub(crate) fn first_lines(message: &str) -> anyhow::Error {
    let text = message.split("Backtrace").next().unwrap_or(message);
    let text = text.split("[Source]").next().unwrap_or(text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).take(8).collect();
    anyhow!("{}", lines.join("; "))
}

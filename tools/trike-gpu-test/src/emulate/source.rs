//! Conversion of CubeCL's CUDA C++ to C++ for the host's compiler.
//!
//! Only parts unknown to g++ are replaced: the headers, the declaration of shared memory, and inline PTX.

use anyhow::{Context, Result, anyhow, bail, ensure};
use cubecl::{Compiler, define_kernel};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::Cuda;
use cubecl_runtime::kernel::CubeKernel;
use std::fmt::Write as _;

/// The source of a kernel for g++.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// C++ that includes `runtime.h`.
    pub(super) text: String,
    /// Shared memory of a launch, in bytes.
    pub(super) shared: usize,
}

/// Prefixes of PTX instructions, and the functions that emulate them: matrix instructions and their loads, asynchronous copies,
/// powers of two, packing, bytes of words and atomics.
const INSTRUCTIONS: &[(&str, &str)] = &[
    ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "emu_mma_s8"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "emu_mma_f16"),
    ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "emu_mma_tf32"),
    ("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16", "emu_load_matrices"),
    ("ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16", "emu_load_transposed"),
    ("ex2.approx.ftz.f32", "emu_exp2"),
    ("cvt.rn.f16x2.f32", "emu_pack"),
    ("prmt.b32", "emu_permute"),
    ("cp.async.cg.shared::cta.global [%0], [%1], 16, 16;", "emu_copy_async"),
    ("cp.async.commit_group;", "emu_commit_group"),
    (WAIT_GROUP, "emu_wait_group"),
    ("atom.relaxed.add.u32 %0, [%1], %2;", "emu_atomic_add"),
];

/// The only instruction with a number in its text.
const WAIT_GROUP: &str = "cp.async.wait_group ";

/// Generates a kernel for CUDA 9.0 and converts it for the host.
///
/// # Errors
/// Errors of the generator, and unsupported instructions.
pub(super) fn generate(kernel: &dyn CubeKernel) -> Result<Source> {
    let definition = define_kernel(kernel).map_err(|e| anyhow!("{e}"))?;
    let supports_features = CppSupportedFeatures {
        grid_constants: true,
        clusters: true,
        fast_math: true,
        fast_tanh: true,
        elect_sync: true,
        dp4a: true,
    };
    let options = CompilationOptions { warp_size: 32, supports_features, amd_wmma: None };
    let kernel = CppCompiler::<Cuda>::default().compile(definition, &options).map_err(|e| anyhow!("{e}"))?;
    Ok(Source { text: for_host(&kernel.source)?, shared: kernel.shared_memory_size })
}

/// The text for g++, with an entry function that passes the buffers to the kernel.
pub(super) fn for_host(source: &str) -> Result<String> {
    const ENTRY: &str = "extern \"C\" __global__";
    let body = source.find("template <typename T, size_t N>").context("unexpected start of the source")?;
    let mut text = "#include \"runtime.h\"\n".to_owned();
    // Integer type names; the other lines before are declarations of NVIDIA's headers.
    for line in source[..body].lines().filter(|line| line.starts_with("typedef")) {
        let _ = writeln!(text, "{line}");
    }
    let mut entry = None;
    // One instruction per line.
    let statements = source[body..].replace(";asm ", ";\nasm ");
    for line in statements.lines().filter(|line| !line.starts_with("#include")) {
        if let Some(signature) = line.strip_prefix(ENTRY) {
            entry = Some(call(signature)?);
        }
        if let Some((before, rest)) = line.split_once("extern __shared__") {
            let (_, rest) = rest.split_once("char ").context("unexpected type of shared memory")?;
            let (name, after) = rest.split_once("[];").context("shared memory has a fixed size")?;
            let _ = writeln!(text, "{before}char* const {name} = emu_shared;{after}");
        } else if line.contains("asm") {
            let _ = writeln!(text, "{}", instruction(line)?);
        } else {
            let _ = writeln!(text, "{line}");
        }
    }
    text += &entry.context("the source has no kernel")?;
    Ok(text)
}

/// Replaces the inline PTX of a line by a call of the emulation.
fn instruction(line: &str) -> Result<String> {
    let unknown = || format!("instruction is not emulated: {line}");
    let (before, text) = line.split_once("asm ").with_context(unknown)?;
    let text = text.strip_prefix("volatile").unwrap_or(text).strip_prefix("(\"").with_context(unknown)?;
    let known = INSTRUCTIONS.iter().find(|(name, _)| text.starts_with(name));
    let (name, function) = known.with_context(unknown)?;
    // Other statements may follow.
    let (text, after) = text.split_once(");").context("inline PTX without an end")?;
    let (_, operands) = text.split_once("\" : ").context("inline PTX without operands")?;
    // The operands may be followed by a memory clobber.
    let operands = operands.split(": \"memory\"").next().unwrap_or(operands);
    let mut call = format!("{before}{function}(__LINE__");
    if *name == WAIT_GROUP {
        let (number, _) = text[name.len()..].split_once(';').context("a wait without a number")?;
        let _ = write!(call, ", {number}");
    }
    // Each operand in parentheses follows its constraint in quotes.
    for operand in operands.split('"').skip(2).step_by(2) {
        let operand = operand.trim_start().strip_prefix('(').context("an operand without parentheses")?;
        // The last operand may have lost its closing parenthesis.
        let operand = operand.split(')').next().unwrap_or(operand);
        let _ = write!(call, ", {operand}");
    }
    ensure!(!after.contains("asm"), "two instructions in a line: {line}");
    Ok(call + ");" + after)
}

/// The entry of the runtime. The signature contains the kernel's name and parameters, between `__global__` and the
/// brace of the body.
fn call(signature: &str) -> Result<String> {
    let (head, _) = signature.rsplit_once(") {").context("a kernel without a body")?;
    // `__launch_bounds__(256) name(parameters`.
    let (_, head) = head.split_once(')').context("a kernel without bounds")?;
    let (name, parameters) = head.split_once('(').context("a kernel without parameters")?;
    let mut arguments: Vec<String> = Vec::new();
    let mut by_value = false;
    for parameter in parameters.split(", ") {
        let (kind, _) = parameter.rsplit_once(' ').context("a parameter without a name")?;
        if kind.contains("__grid_constant__") {
            by_value = true;
        } else if by_value {
            bail!("a buffer after the argument by value: {parameter}");
        } else {
            arguments.push(format!("({kind})buffers[{}]", arguments.len()));
        }
    }
    let buffers = arguments.len();
    if by_value {
        arguments.push("*(const info_st*)info".to_owned());
    }
    let info = if by_value { "sizeof(info_st)" } else { "0" };
    Ok(format!(
        "extern \"C\" void emu_entry(char** buffers, const void* info) {{ {}({}); }}\n\
         extern const int emu_arguments;\nconst int emu_arguments = {buffers};\n\
         extern const unsigned emu_info_bytes;\nconst unsigned emu_info_bytes = {info};\n",
        name.trim(),
        arguments.join(", "),
    ))
}

/// A kernel as CubeCL writes them: each thread passes a number to its neighbour through shared memory.
#[cfg(test)]
pub(super) const NEIGHBOUR: &str = "\
typedef unsigned int uint32_t;
#define X
template <typename T, size_t N>
struct array { T data[N]; };
#include <cuda_fp16.h>
struct info_st {
uint32_t static_meta[1];
};
extern \"C\" __global__ void __launch_bounds__(64)  neighbour(uint32_t const* const __restrict__ v1, \
uint32_t * const __restrict__ v2, __grid_constant__ info_st const v3) {
extern __shared__ __align__(16) char v4[];uint32_t const v5 = threadIdx.x;
uint32_t * const v6 = (uint32_t*)v4;
v6[v5] = v1[v5];
__syncthreads();
v2[v5] = v6[(v5 + 1) % v3.static_meta[0]];
}
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_headers_and_the_entry_are_replaced() {
        let text = for_host(NEIGHBOUR).unwrap();
        assert!(
            text.starts_with("#include \"runtime.h\"\ntypedef unsigned int uint32_t;\ntemplate"),
            "{text}"
        );
        assert!(text.contains("\nchar* const v4 = emu_shared;uint32_t const v5 = threadIdx.x;\n"), "{text}");
        let call = "neighbour((uint32_t const* const __restrict__)buffers[0], (uint32_t * const __restrict__)buffers[1], \
                    *(const info_st*)info);";
        assert!(text.contains(call) && text.contains("emu_arguments = 2;"), "{text}");
        assert!(!text.contains("cuda_fp16"), "{text}");
        assert!(for_host("int main() {}").is_err());
    }

    #[test]
    fn matrix_instructions_become_calls_and_others_are_refused() {
        let mma = "asm volatile(\"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0}, {%1}, {%2}, {%3};\" : \"=r\"(d0) : \"r\"(a0), \"r\"(b0), \"r\"(c[1]));";
        assert_eq!(instruction(mma).unwrap(), "emu_mma_s8(__LINE__, d0, a0, b0, c[1]);");
        let copy = "asm volatile(\"cp.async.cg.shared::cta.global [%0], [%1], 16, 16;\" :  : \"r\"(v1), \"l\"(v2) : \"memory\");}";
        assert_eq!(instruction(copy).unwrap(), "emu_copy_async(__LINE__, v1, v2);}");
        let wait = "asm volatile(\"cp.async.wait_group 1;\" :  :  : \"memory\");__syncthreads();";
        assert_eq!(instruction(wait).unwrap(), "emu_wait_group(__LINE__, 1);__syncthreads();");
        let power = "asm (\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(result) : \"f\"(v10) );";
        assert_eq!(instruction(power).unwrap(), "emu_exp2(__LINE__, result, v10);");
        let other = instruction("asm volatile(\"lop3.b32 %0, %1;\" : \"=r\"(d) : \"r\"(a));").unwrap_err();
        assert!(other.to_string().contains("not emulated"), "{other}");
    }
}

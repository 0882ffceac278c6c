//! Validation of WGSL by wgpu's validator.

use anyhow::{Result, anyhow};
use cubecl_wgpu::wgpu::naga::front::wgsl;
use cubecl_wgpu::wgpu::naga::valid::{Capabilities, ValidationFlags, Validator};

/// Parses and validates a shader.
///
/// `extensions` allows common native extensions of WebGPU: 16-bit floats, subgroups and float atomics.
///
/// # Errors
/// Errors of naga, with the position in the source.
pub(crate) fn validate(source: &str, extensions: bool) -> Result<()> {
    let module = wgsl::parse_str(source).map_err(|e| anyhow!("naga: {}", e.emit_to_string(source)))?;
    let capabilities = if extensions {
        Capabilities::SHADER_FLOAT16
            | Capabilities::SUBGROUP
            | Capabilities::SUBGROUP_BARRIER
            | Capabilities::SHADER_FLOAT32_ATOMIC
    } else {
        Capabilities::empty()
    };
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.validate(&module).map_err(|e| anyhow!("naga: {}", e.emit_to_string(source)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_lacks_is_refused() {
        let plain = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;\n\
                     @compute @workgroup_size(1) fn main() { x[0] = 1.0; }";
        validate(plain, false).unwrap();
        let subgroups = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;\n\
                         @compute @workgroup_size(1) fn main() { x[0] = subgroupAdd(x[0]); }";
        validate(subgroups, true).unwrap();
        assert!(validate(subgroups, false).is_err());
        assert!(validate("fn main() { y = 1; }", true).unwrap_err().to_string().contains("naga"));
    }
}

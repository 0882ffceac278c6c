//! Machine code as text, by NVIDIA's disassembler.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::generate::first_lines;

/// The end of a whole listing; one that a killed run left behind has none.
const END: &str = "// end\n";

/// The program `nvdisasm`.
pub struct Disassembler(PathBuf);

impl Disassembler {
    /// The disassembler under the folder `nvidia` of the packages of a Python environment.
    ///
    /// # Errors
    /// When it is missing.
    pub fn find(nvidia: &Path) -> Result<Self> {
        let program = nvidia.join("cu13/bin/nvdisasm");
        ensure!(program.is_file(), "{} is missing", program.display());
        Ok(Self(program))
    }

    /// Disassembles machine code and keeps the listing in a file.
    ///
    /// # Errors
    /// When the program fails or the file cannot be written.
    pub(super) fn keep(&self, code: &[u8], listing: &Path) -> Result<()> {
        let cubin = listing.with_extension("cubin");
        std::fs::write(&cubin, code).with_context(|| format!("cannot write {}", cubin.display()))?;
        let output = Command::new(&self.0).arg("--print-code").arg(&cubin).output();
        let output = output.with_context(|| format!("cannot start {}", self.0.display()))?;
        let complaint = || first_lines(&String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "nvdisasm: {}: {}", output.status, complaint());
        let text = String::from_utf8(output.stdout).context("the listing is not text")?;
        std::fs::write(listing, text + END).with_context(|| format!("cannot write {}", listing.display()))?;
        std::fs::remove_file(&cubin).with_context(|| format!("cannot remove {}", cubin.display()))
    }
}

/// The file of the listing of a source's machine code.
pub(super) fn listing_of(source: &Path) -> PathBuf {
    source.with_extension("sass")
}

/// A listing kept by an earlier run.
pub(super) fn kept(listing: &Path) -> Option<String> {
    let mut text = std::fs::read_to_string(listing).ok()?;
    text.truncate(text.strip_suffix(END)?.len());
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_listing_is_not_kept() {
        let file = std::env::temp_dir().join(format!("trike-listing-{}.sass", std::process::id()));
        assert_eq!(kept(&file), None);
        std::fs::write(&file, format!("NOP ;\n{END}")).unwrap();
        assert_eq!(kept(&file).as_deref(), Some("NOP ;\n"));
        std::fs::write(&file, "NOP ;\n").unwrap();
        assert_eq!(kept(&file), None);
        std::fs::remove_file(file).unwrap();
    }
}

//! CUDA and HIP builds without LLVM.
//!
//! CubeCL's CUDA and HIP runtimes link LLVM for a code generator that Trike does not use, and their build scripts
//! download it. With `DOCS_RS` set they omit it; the missing functions are replaced by stubs that abort.

use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use xshell::{PushEnv, cmd};

/// Environment for checks and docs without LLVM: the build scripts download it unless this variable is set.
pub(crate) fn none(ws: &Workspace) -> PushEnv<'_> {
    ws.sh.push_env("DOCS_RS", "1")
}

/// Environment for linking executables without LLVM, active during the lifetime of the value.
pub(crate) struct Stubbed<'a> {
    _environment: [PushEnv<'a>; 2],
}

/// Links CUDA and HIP with aborting stubs instead of LLVM.
pub(crate) fn stubbed(ws: &Workspace) -> Result<Stubbed<'_>> {
    let folder = ws.metadata.target_directory.as_std_path().join("llvm-stubs");
    archive(ws, &folder)?;
    // The second variable is read by the build script of `trike-cube`.
    Ok(Stubbed { _environment: [none(ws), ws.sh.push_env("TRIKE_LLVM_STUBS", folder)] })
}

/// Builds `libllvmstubs.a` in a folder, unless it is up to date with the crate versions.
fn archive(ws: &Workspace, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (source, object, archive) =
        (folder.join("stubs.c"), folder.join("stubs.o"), folder.join("libllvmstubs.a"));
    let text = stubs(&functions(ws)?);
    if archive.exists() && std::fs::read_to_string(&source).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(&source, text).with_context(|| format!("cannot write {}", source.display()))?;
    let _ = std::fs::remove_file(&archive);
    cmd!(ws.sh, "cc -O1 -fno-builtin -ffunction-sections -c {source} -o {object}").quiet().run()?;
    cmd!(ws.sh, "ar rcs {archive} {object}").quiet().run()?;
    Ok(())
}

/// The functions of LLVM, and of CubeCL's C++ wrapper, declared by the crates of the lock file.
fn functions(ws: &Workspace) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for name in ["llvm-sys", "cubecl-llvm"] {
        let package = ws.metadata.packages.iter().find(|package| package.name == name);
        let package = package.with_context(|| format!("{name} is not in the lock file"))?;
        let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
        declared(folder.join("src").as_std_path(), &mut found)?;
    }
    ensure!(found.len() > 200, "only {} functions of LLVM are declared: {found:?}", found.len());
    Ok(found)
}

fn declared(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path: PathBuf = entry?.path();
        if path.is_dir() {
            declared(&path, found)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.extend(declarations(&std::fs::read_to_string(&path)?).map(str::to_owned));
        }
    }
    Ok(())
}

/// Function names of LLVM or of CubeCL's C++; extra names are harmless.
fn declarations(source: &str) -> impl Iterator<Item = &str> {
    let words = source.split("fn ").skip(1);
    let names = words.filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next());
    names.filter(|name| name.starts_with("LLVM") || name.starts_with("cubecl_"))
}

/// C source of functions that abort.
fn stubs(names: &BTreeSet<String>) -> String {
    let mut text = "/* Functions of LLVM that the CUDA and HIP runtimes name and, with their C++ generators, never call. */\n\
                    extern void abort(void) __attribute__((noreturn));\n"
        .to_owned();
    for name in names {
        let _ = writeln!(text, "void {name}(void) {{ abort(); }}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_functions_become_functions_that_abort() {
        let source = "extern \"C\" {\n    pub fn LLVMAddFunction(m: Module);\n    fn cubecl_free_message(p: *mut u8);\n}\n\
                      fn helper() { LLVMNotDeclared() }\n";
        let names: BTreeSet<String> = declarations(source).map(str::to_owned).collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), ["LLVMAddFunction", "cubecl_free_message"]);
        assert!(stubs(&names).contains("void LLVMAddFunction(void) { abort(); }"));
    }

    #[test]
    fn the_crates_of_the_lock_file_declare_what_their_code_names() {
        let names = functions(&Workspace::load().unwrap()).unwrap();
        for name in ["LLVMContextCreate", "cubecl_link_device_bitcode", "cubecl_lld_elf_link"] {
            assert!(names.contains(name), "{name}");
        }
    }
}

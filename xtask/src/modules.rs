//! Cycles between the modules of a crate.
//!
//! Rule: in each folder the children (a file, or a folder with its contents) use each other without cycles. A parent
//! and its children may use each other: `foo/mod.rs` uses `foo/a.rs`, which may use the parent's types. A file
//! `error.rs` counts as part of the parent, because errors are used everywhere and contain values of all modules.
//!
//! The check reads text, not types. It sees `use` declarations and paths that begin with `crate`, `super` or `self`,
//! and follows re-exports to the file that defines a name. It sees neither method calls nor names imported by `use
//! super::*`. Code under `#[cfg(test)]` is skipped.

use crate::workspace::Workspace;
use crate::{source, tokens};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Path of a module below the crate; empty for the root.
type Path = Vec<String>;

/// A note for the table of steps, and all cycles.
pub(crate) fn findings(ws: &Workspace) -> Result<(String, Vec<String>)> {
    let files = ws.files()?;
    let (mut found, mut count) = (Vec::new(), 0);
    for package in ws.metadata.workspace_packages() {
        let folder = format!("{}/src/", ws.folder(package));
        let mut modules = Vec::new();
        for file in files.iter().filter_map(|f| f.strip_prefix(&folder)) {
            if let Some(path) = module_path(file) {
                modules.push((path, ws.sh.read_file(format!("{folder}{file}"))?));
            }
        }
        let tree = Tree::new(modules);
        count += tree.modules.len();
        found.extend(tree.knots().into_iter().map(|knot| (package.name.to_string(), knot)));
    }
    let finding = |(krate, knot): (String, Knot)| {
        format!("{krate}: {} use each other in a cycle:{}", knot.members.join(", "), knot.describe())
    };
    Ok((format!("{count} modules without cycles"), found.into_iter().map(finding).collect()))
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`; roots of additional binaries are skipped.
fn module_path(file: &str) -> Option<Path> {
    let path = file.strip_suffix(".rs")?;
    if path.starts_with("bin/") {
        return None;
    }
    let mut parts: Path = path.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod") || matches!(path, "lib" | "main") {
        parts.pop();
    }
    Some(parts)
}

/// Children of one folder that form a cycle, with the uses between them.
struct Knot {
    /// Paths as text, sorted.
    members: Vec<String>,
    /// Pairs of using and used module.
    uses: Vec<(String, String)>,
}

impl Knot {
    fn describe(&self) -> String {
        self.uses.iter().map(|(from, to)| format!("\n    {from} -> {to}")).collect()
    }
}

/// The modules of a crate with their imports and used paths.
struct Tree {
    modules: BTreeMap<Path, tokens::Module>,
}

impl Tree {
    fn new(files: Vec<(Path, String)>) -> Self {
        let mut modules = BTreeMap::new();
        let mut tests = Vec::new();
        for (path, text) in files {
            let (code, test_modules) = source::without_tests(&source::code(&text));
            tests.extend(test_modules.into_iter().map(|name| [&path[..], &[name]].concat()));
            modules.insert(path, tokens::Module::new(&code));
        }
        modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Self { modules }
    }

    /// The module that defines `path` as seen from `module`; `None` for other crates.
    fn resolve(&self, module: &[String], path: &[String], depth: usize) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module.split_last()?.1.to_vec(),
            name => {
                let found = self.step(module, name, depth)?;
                return Some(self.walk(found, rest, depth));
            }
        };
        Some(self.walk(start, rest, depth))
    }

    fn walk(&self, start: Path, rest: &[String], depth: usize) -> Path {
        let mut at = start;
        for name in rest {
            let next = match name.as_str() {
                "super" => at.split_last().map(|(_, parent)| parent.to_vec()),
                "self" => None,
                name => self.step(&at, name, depth),
            };
            // An item of this module, or a re-export of another crate.
            let Some(next) = next else { break };
            at = next;
        }
        at
    }

    /// The module that `name` refers to in `module`: a child, or the target of an import.
    fn step(&self, module: &[String], name: &str, depth: usize) -> Option<Path> {
        let child = [module, &[name.to_owned()]].concat();
        if self.modules.contains_key(&child) {
            return Some(child);
        }
        // Imports may be cyclic through globs.
        if depth > 8 {
            return None;
        }
        let here = self.modules.get(module)?;
        if let Some(path) = here.imports.get(name) {
            return self.resolve(module, path, depth + 1);
        }
        if here.defines.contains(name) {
            return None;
        }
        let homes = here.globs.iter().filter_map(|glob| self.resolve(module, glob, depth + 1));
        let mut homes = homes.filter(|home| home != module);
        homes.find_map(|home| match self.modules.get(&home)?.defines.contains(name) {
            true => Some(home),
            false => self.step(&home, name, depth + 1),
        })
    }

    /// Pairs of modules where the first uses the second.
    fn uses(&self) -> BTreeSet<(&Path, Path)> {
        let mut uses = BTreeSet::new();
        for (path, module) in &self.modules {
            for named in &module.names {
                if let Some(target) = self.resolve(path, named, 0).filter(|target| target != path) {
                    uses.insert((path, target));
                }
            }
        }
        uses
    }

    fn knots(&self) -> Vec<Knot> {
        // Folder -> child -> used children, with the using modules.
        let mut folders: BTreeMap<Path, Uses> = BTreeMap::new();
        for (from, to) in self.uses() {
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            // A parent and its descendants, or its errors.
            let is_head = |path: &[String]| path.len() == common || path[common..] == ["error"];
            if is_head(from) || is_head(&to) {
                continue;
            }
            let (a, b) = (from[..=common].to_vec(), to[..=common].to_vec());
            let folder = folders.entry(from[..common].to_vec()).or_default();
            folder.entry(a).or_default().entry(b).or_default().push((from.join("::"), to.join("::")));
        }
        folders.values().flat_map(knots_of_folder).collect()
    }
}

/// Children of a folder, and the children that each uses, with the using modules.
type Uses = BTreeMap<Path, BTreeMap<Path, Vec<(String, String)>>>;

/// The strongly connected sets of children.
fn knots_of_folder(uses: &Uses) -> Vec<Knot> {
    let reach: BTreeMap<&Path, BTreeSet<&Path>> = uses
        .keys()
        .map(|start| {
            let mut seen = BTreeSet::new();
            let mut open = vec![start];
            while let Some(at) = open.pop() {
                let next = uses.get(at).into_iter().flat_map(BTreeMap::keys);
                open.extend(next.filter(|to| seen.insert(*to)));
            }
            (start, seen)
        })
        .collect();
    let mut knots = Vec::new();
    let mut done: BTreeSet<&Path> = BTreeSet::new();
    for (at, seen) in &reach {
        if !seen.contains(at) || done.contains(at) {
            continue;
        }
        let together =
            |other: &&Path| seen.contains(*other) && reach.get(*other).is_some_and(|s| s.contains(at));
        let members: Vec<&Path> = reach.keys().copied().filter(together).collect();
        done.extend(&members);
        let inner = members.iter().flat_map(|from| uses[*from].iter());
        let inner = inner.filter(|(to, _)| members.contains(to)).flat_map(|(_, examples)| examples.clone());
        knots.push(Knot { uses: inner.collect(), members: members.iter().map(|p| p.join("::")).collect() });
    }
    knots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knots(files: &[(&str, &str)]) -> Vec<(Vec<String>, usize)> {
        let files = files.iter().map(|(file, text)| (module_path(file).unwrap(), (*text).to_owned()));
        let knots = Tree::new(files.collect()).knots();
        knots.into_iter().map(|knot| (knot.members, knot.uses.len())).collect()
    }

    #[test]
    fn files_are_modules() {
        for (file, path) in [("lib.rs", ""), ("a.rs", "a"), ("a/mod.rs", "a"), ("a/b/c.rs", "a::b::c")] {
            assert_eq!(module_path(file).unwrap().join("::"), path);
        }
        assert_eq!(module_path("bin/tool.rs"), None);
        assert_eq!(module_path("a/kernel.wgsl"), None);
    }

    #[test]
    fn siblings_that_use_each_other_are_found() {
        let found = knots(&[
            ("lib.rs", "mod a; mod b; mod c; pub use a::A;"),
            ("a.rs", "use crate::b::B; struct A;"),
            ("b.rs", "fn f() { super::c::g() }"),
            ("c.rs", "use {crate::{A as It, b}, std::fmt};"),
        ]);
        assert_eq!(found, [(["a", "b", "c"].map(str::to_owned).to_vec(), 4)]);
    }

    #[test]
    fn folders_are_one_child_of_theirs() {
        let found = knots(&[
            ("lib.rs", "mod x; mod y;"),
            ("x/mod.rs", "mod a; mod b;"),
            ("x/a.rs", "use crate::y::c::C;"),
            ("x/b.rs", "pub struct B;"),
            ("y/mod.rs", "pub mod c; pub mod d;"),
            ("y/c.rs", "pub struct C;"),
            ("y/d.rs", "use crate::x::b::B;"),
        ]);
        assert_eq!(found, [(["x", "y"].map(str::to_owned).to_vec(), 2)]);
    }

    #[test]
    fn parents_and_children_may_know_each_other() {
        let found = knots(&[
            ("lib.rs", "mod x; use x::X; pub struct Root;"),
            ("x/mod.rs", "mod a; use a::A; pub struct X;"),
            ("x/a.rs", "use super::X; use crate::{Root, error::Error}; pub struct A(X);"),
            ("error.rs", "use crate::x::X; pub enum Error { Wrong(X) }"),
        ]);
        assert_eq!(found, []);
    }

    /// `crate::B` is what `b` defines, wherever it is exported; the tests of a module see what they like.
    #[test]
    fn reexports_are_followed_and_tests_left_out() {
        let lib = "mod a; mod b; pub use a::*; pub use b::{B, b as again};";
        let a = "use crate::B; pub struct A;";
        for (b, knots_expected) in [
            ("pub struct B; fn b() -> crate::A { }", 1),
            ("pub struct B; pub fn b() {} #[cfg(test)] mod tests { use crate::A; }", 0),
            ("pub struct B; // crate::A\nconst S: &str = \"crate::A\";", 0),
        ] {
            let found = knots(&[("lib.rs", lib), ("a.rs", a), ("b.rs", b)]);
            assert_eq!(found.len(), knots_expected, "{b}");
        }
    }
}

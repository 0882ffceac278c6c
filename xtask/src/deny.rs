//! Checks of licences, banned crates and sources against `deny.toml`, without cargo-deny.
//!
//! cargo-deny takes minutes to compile on a bare machine, so this module checks the same policy file over `cargo
//! metadata`. It supports only what that file uses: the string lists under `[licenses]`, `[bans]` and `[sources]`, and
//! `[[licenses.clarify]]`. If cargo-deny is installed, it runs too.

use crate::spdx;
use crate::workspace::{Workspace, no_findings};
use anyhow::{Context, Result};
use cargo_metadata::Metadata;
use xshell::cmd;

/// The policy of `deny.toml`.
struct Policy {
    licenses: Vec<String>,
    banned: Vec<String>,
    registries: Vec<String>,
    /// Packages without a licence field, and their licences.
    clarified: Vec<(String, String)>,
}

/// A package of the dependency graph, reduced to the checked fields.
struct Subject {
    name: String,
    license: Option<String>,
    /// `None` for a path inside the workspace.
    source: Option<String>,
    /// Registry dependencies that accept any version.
    wildcards: Vec<String>,
}

/// Checks every package of the lock file, for all platforms and features.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let policy = Policy::parse(&ws.sh.read_file("deny.toml")?)?;
    let subjects = subjects(&ws.metadata);
    let findings: Vec<String> = subjects.iter().flat_map(|s| policy.findings(s)).collect();
    no_findings(&findings)?;
    let installed = cmd!(ws.sh, "cargo deny --version").quiet().ignore_stdout().ignore_stderr().run().is_ok();
    if installed {
        cmd!(ws.sh, "cargo deny --locked check --hide-inclusion-graph bans licenses sources")
            .quiet()
            .run()?;
    } else {
        println!("cargo-deny is not installed: only the built-in check of deny.toml ran.");
        println!("To run both: cargo install --locked cargo-deny");
    }
    let by = if installed { "built-in check and cargo-deny" } else { "built-in check" };
    Ok(format!("{} packages, {by}", subjects.len()))
}

fn subjects(metadata: &Metadata) -> Vec<Subject> {
    let subject = |package: &cargo_metadata::Package| Subject {
        name: package.name.to_string(),
        license: package.license.clone(),
        source: package.source.as_ref().map(|s| s.repr.clone()),
        wildcards: package
            .dependencies
            .iter()
            // Requirements of third-party crates are not checked.
            .filter(|d| package.source.is_none() && d.path.is_none() && d.req.to_string() == "*")
            .map(|d| d.name.clone())
            .collect(),
    };
    metadata.packages.iter().map(subject).collect()
}

impl Policy {
    fn parse(text: &str) -> Result<Self> {
        Ok(Self {
            licenses: strings(text, "licenses", "allow")?,
            banned: strings(text, "bans", "deny")?,
            registries: strings(text, "sources", "allow-registry")?,
            clarified: clarified(text)?,
        })
    }

    fn findings(&self, subject: &Subject) -> Vec<String> {
        let mut findings = Vec::new();
        let name = &subject.name;
        if self.banned.contains(name) {
            findings.push(format!(
                "{name} is banned; see which package depends on it: cargo tree --all-features -i {name}"
            ));
        }
        let clarified = self.clarified.iter().find(|(known, _)| known == name).map(|(_, license)| license);
        match subject.license.as_ref().or(clarified) {
            None => findings.push(format!("{name} has no license")),
            Some(license) => {
                match spdx::satisfied(license, &|wanted| self.licenses.iter().any(|l| l == wanted)) {
                    Some(true) => {}
                    Some(false) => {
                        findings.push(format!("{name} is licensed `{license}`, which is not allowed"));
                    }
                    None => findings.push(format!("{name}: `{license}` is not a valid license expression")),
                }
            }
        }
        if let Some(source) = &subject.source {
            let allowed =
                source.strip_prefix("registry+").is_some_and(|s| self.registries.iter().any(|r| r == s));
            if !allowed {
                findings.push(format!("{name} comes from {source}, which is not an allowed registry"));
            }
        }
        findings.extend(subject.wildcards.iter().map(|d| format!("{name} accepts any version of {d}")));
        findings
    }
}

/// The strings of the array `key` under `[section]`; comments may be on their own lines or after a string.
fn strings(text: &str, section: &str, key: &str) -> Result<Vec<String>> {
    let (section, key) = (format!("[{section}]"), format!("{key} = ["));
    let mut lines = text.lines().map(str::trim).skip_while(|l| **l != section).skip(1);
    let first = lines
        .by_ref()
        .take_while(|l| !l.starts_with('['))
        .find_map(|l| l.strip_prefix(key.as_str()))
        .with_context(|| format!("deny.toml: no `{key}` under {section}"))?;
    let mut found = Vec::new();
    for line in std::iter::once(first).chain(lines) {
        let line = line.split('#').next().unwrap_or_default();
        // Every second piece between quotes is a string.
        found.extend(line.split('"').skip(1).step_by(2).map(str::to_owned));
        if line.contains(']') {
            return Ok(found);
        }
    }
    anyhow::bail!("deny.toml: the array `{key}` under {section} is not closed")
}

/// Package and licence of each `[[licenses.clarify]]`.
fn clarified(text: &str) -> Result<Vec<(String, String)>> {
    let tables = text.split("[[licenses.clarify]]").skip(1);
    let value = |table: &str, key: &str| {
        let start = format!("{key} = \"");
        let lines = table.lines().take_while(|l| !l.starts_with('['));
        let mut values =
            lines.filter_map(|l| Some(l.strip_prefix(start.as_str())?.split('"').next()?.to_owned()));
        values.next().with_context(|| format!("deny.toml: no `{key}` under [[licenses.clarify]]"))
    };
    tables.map(|table| Ok((value(table, "crate")?, value(table, "expression")?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = "[bans]\nwildcards = \"deny\"\ndeny = [\n    # Needs a C library.\n    \"onig\", # why\n]\n\
                        [licenses]\nallow = [\"MIT\", \"Zlib\"]\n\
                        [[licenses.clarify]]\ncrate = \"silent\"\nexpression = \"Zlib\"\n\
                        [sources]\nallow-registry = [\"https://example.org/index\"]\n";

    fn subject() -> Subject {
        Subject {
            name: "a".to_owned(),
            license: Some("MIT OR Apache-2.0".to_owned()),
            source: Some("registry+https://example.org/index".to_owned()),
            wildcards: Vec::new(),
        }
    }

    #[test]
    fn the_policy_is_read_from_its_file() {
        let policy = Policy::parse(TOML).unwrap();
        assert_eq!(policy.banned, ["onig"]);
        assert_eq!(policy.licenses, ["MIT", "Zlib"]);
        assert_eq!(policy.registries, ["https://example.org/index"]);
        assert_eq!(policy.clarified, [("silent".to_owned(), "Zlib".to_owned())]);
        for broken in [
            TOML.replace("[bans]", "[ban]"),
            TOML.replace("allow =", "accept ="),
            TOML.replace("]\n", "\n"),
            TOML.replace("expression", "licence"),
        ] {
            assert!(Policy::parse(&broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn each_rule_refuses_what_it_is_for() {
        let policy = Policy::parse(TOML).unwrap();
        assert_eq!(policy.findings(&subject()), [""; 0]);
        let silent = Subject { name: "silent".to_owned(), license: None, ..subject() };
        assert_eq!(policy.findings(&silent), [""; 0]);
        let workspace = Subject { source: None, ..subject() };
        assert_eq!(policy.findings(&workspace), [""; 0]);
        for (wrong, message) in [
            (Subject { name: "onig".to_owned(), ..subject() }, "onig is banned"),
            (Subject { license: None, ..subject() }, "has no license"),
            (Subject { license: Some("GPL-3.0".to_owned()), ..subject() }, "`GPL-3.0`, which is not allowed"),
            (
                Subject { license: Some("MIT OR".to_owned()), ..subject() },
                "is not a valid license expression",
            ),
            (
                Subject { source: Some("git+https://example.org/index".to_owned()), ..subject() },
                "comes from git+",
            ),
            (
                Subject { source: Some("registry+https://example.com".to_owned()), ..subject() },
                "comes from registry+",
            ),
            (Subject { wildcards: vec!["b".to_owned()], ..subject() }, "any version of b"),
        ] {
            let findings = policy.findings(&wrong);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].contains(message), "{findings:?}");
        }
    }
}

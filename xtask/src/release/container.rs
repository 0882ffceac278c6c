//! The description of the container image, checked as text: no container engine is needed, and none builds it here.

use super::{CONTAINERFILE, Release};
use crate::workspace::{Workspace, no_findings};
use anyhow::{Result, ensure};

/// Instructions of the format that make sense here: nothing is run or downloaded while the image is built.
const INSTRUCTIONS: &[&str] =
    &["FROM", "LABEL", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"];

pub(super) fn check(ws: &Workspace, release: &Release) -> Result<()> {
    let text = ws.sh.read_file(CONTAINERFILE)?;
    let context = release.out.join(release.name());
    ensure!(context.is_dir(), "{} is not there", context.display());
    // The image is made of the Linux archive, whatever this machine's command is called.
    let exists = |file: &str| context.join(file).exists() || file == "trike";
    no_findings(&findings(&text, &exists))?;
    println!("{CONTAINERFILE}: instructions, sources, user and entry point are in order; no image was built");
    Ok(())
}

/// Instructions that an engine would reject, and missing requirements: existing sources, a user other than root, a program.
fn findings(text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let instructions = instructions(text);
    let mut findings = Vec::new();
    let value =
        |name: &str| instructions.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    if instructions.first().is_none_or(|(name, _)| name != "FROM") {
        findings.push("the first instruction must be FROM".to_owned());
    }
    for (name, value) in &instructions {
        if !INSTRUCTIONS.contains(&name.as_str()) {
            findings.push(format!("{name}: not an instruction that this image may use"));
        }
        let words: Vec<&str> = value.split_whitespace().collect();
        match name.as_str() {
            "COPY" if words.len() < 2 => {
                findings.push(format!("COPY {value}: expected sources and a target"));
            }
            "COPY" => {
                let (target, sources) = words.split_last().expect("two words were counted");
                let missing = sources.iter().filter(|source| !source.starts_with("--") && !exists(source));
                findings.extend(missing.map(|source| format!("COPY: the archive has no {source}")));
                if sources.len() > 1 && !target.ends_with('/') {
                    findings
                        .push(format!("COPY: {target}: several sources need a folder, with `/` at the end"));
                }
            }
            "LABEL" | "ENV" if !value.contains('=') => {
                findings.push(format!("{name} {value}: expected name=value"));
            }
            "ENTRYPOINT" | "CMD" if list(value).is_none_or(|words| words.is_empty()) => {
                findings.push(format!("{name} {value}: expected [\"word\", ..]; the image has no shell"));
            }
            _ if value.is_empty() => findings.push(format!("{name}: no value")),
            _ => {}
        }
    }
    let user = value("USER").unwrap_or("root").split(':').next().unwrap_or_default();
    if user == "root" || user.parse() == Ok(0) {
        findings.push("USER: the command would run as root".to_owned());
    }
    let program = value("ENTRYPOINT").and_then(list).and_then(|words| words.first().copied());
    let copied = instructions.iter().any(|(name, value)| {
        name == "COPY" && value.split_whitespace().last().is_some_and(|target| Some(target) == program)
    });
    if !copied {
        findings.push("ENTRYPOINT: must be the path that the command is copied to".to_owned());
    }
    findings
}

/// Name and value of each instruction; lines that end with `\` go on.
fn instructions(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let joined = lines.fold(String::new(), |all, line| match line.strip_suffix('\\') {
        Some(start) => all + start + " ",
        None => all + line + "\n",
    });
    let split = |line: &str| {
        let (name, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        (name.to_owned(), value.trim().to_owned())
    };
    joined.lines().map(split).collect()
}

/// The words of `["a", "b"]`; `None` for anything else.
fn list(value: &str) -> Option<Vec<&str>> {
    let inner = value.strip_prefix('[')?.strip_suffix(']')?;
    inner.split(',').map(|word| word.trim().strip_prefix('"')?.strip_suffix('"')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Why.\nFROM base:1\nLABEL a=\"b\" \\\n  c=\"d\"\nCOPY A B /doc/\nCOPY trike /bin/trike\nUSER 1:1\n\
                        ENTRYPOINT [\"/bin/trike\"]\nCMD [\"--help\"]\n";

    #[test]
    fn a_good_description_passes() {
        assert_eq!(findings(GOOD, &|_| true), [""; 0]);
    }

    #[test]
    fn each_mistake_is_found() {
        for (from, to, message) in [
            ("FROM base:1\n", "", "first instruction must be FROM"),
            ("USER 1:1\n", "RUN make\nUSER 1:1\n", "RUN: not an instruction"),
            ("COPY A B /doc/", "COPY A B /doc", "several sources need a folder"),
            ("COPY A B /doc/", "COPY A", "expected sources and a target"),
            ("COPY A B", "COPY A C", "the archive has no C"),
            ("LABEL a=\"b\" \\\n  c=\"d\"", "LABEL a", "expected name=value"),
            ("USER 1:1\n", "", "run as root"),
            ("USER 1:1", "USER root", "run as root"),
            ("USER 1:1", "USER 0:0", "run as root"),
            ("[\"/bin/trike\"]", "/bin/trike", "the image has no shell"),
            ("[\"/bin/trike\"]", "[\"/bin/other\"]", "the path that the command is copied to"),
        ] {
            let changed = GOOD.replacen(from, to, 1);
            assert_ne!(changed, GOOD);
            let found = findings(&changed, &|file| file != "C");
            assert!(found.iter().any(|finding| finding.contains(message)), "{from} -> {to}: {found:?}");
        }
    }
}

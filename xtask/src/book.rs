//! Link checks of the book and of the Markdown files at the root, without mdBook.

/// Whether a normalized path, relative to the root, is a file.
pub(crate) type Exists<'a> = &'a dyn Fn(&str) -> bool;

/// mdBook's table of contents.
pub(crate) const SUMMARY: &str = "docs/src/SUMMARY.md";
const CHAPTERS: &str = "docs/src/";

/// Checks that the summary lists exactly the existing chapters.
pub(crate) fn summary_findings(summary: &str, files: &[String]) -> Vec<String> {
    let mut findings = Vec::new();
    let listed: Vec<String> = links(summary).into_iter().filter_map(|l| resolve(SUMMARY, &l)).collect();
    for chapter in &listed {
        if !files.contains(chapter) {
            findings.push(format!("{SUMMARY}: {chapter} does not exist"));
        }
    }
    for file in files.iter().filter(|f| f.starts_with(CHAPTERS) && f.ends_with(".md") && *f != SUMMARY) {
        if !listed.contains(file) {
            findings.push(format!("{SUMMARY}: {file} is not listed"));
        }
    }
    findings
}

/// Checks that every relative link of a Markdown file points to an existing file, and that links of a chapter stay
/// inside the book.
pub(crate) fn link_findings(path: &str, text: &str, exists: Exists) -> Vec<String> {
    let mut findings = Vec::new();
    for link in links(text) {
        match resolve(path, &link) {
            None => findings.push(format!("{path}: the link `{link}` leaves the repository")),
            Some(target) if !exists(&target) => {
                findings.push(format!("{path}: the link `{link}` points to {target}, which does not exist"));
            }
            // The rendered book contains only the chapters' folder.
            Some(target) if path.starts_with(CHAPTERS) && !target.starts_with(CHAPTERS) => {
                findings.push(format!("{path}: the link `{link}` leaves the book"));
            }
            Some(_) => {}
        }
    }
    findings
}

/// The targets of inline links that are relative paths, without fragments; code is skipped.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        if in_block {
            continue;
        }
        // Every second piece between backticks is code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for rest in prose.split("](").skip(1) {
            let target = rest.split([')', ' ', '#']).next().unwrap_or_default();
            let is_url = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !is_url {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// The path of a link relative to the root; `None` if it leaves the repository.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_and_the_folder_must_agree() {
        let files =
            ["docs/src/SUMMARY.md", "docs/src/a.md", "docs/src/deep/b.md", "README.md"].map(str::to_owned);
        assert_eq!(summary_findings("- [A](a.md)\n- [B](./deep/b.md)\n", &files), [""; 0]);
        let findings = summary_findings("- [A](a.md)\n- [C](c.md)\n", &files);
        assert_eq!(
            findings,
            [
                "docs/src/SUMMARY.md: docs/src/c.md does not exist",
                "docs/src/SUMMARY.md: docs/src/deep/b.md is not listed"
            ]
        );
    }

    #[test]
    fn relative_links_must_lead_somewhere() {
        let exists = |path: &str| ["docs/src/a.md", "README.md"].contains(&path);
        let good =
            "[x](a.md#part) [y](https://example.org/z) [z](#here) `[n](none.md)`\n```\n[n](none.md)\n```\n";
        assert_eq!(link_findings("docs/src/b.md", good, &exists), [""; 0]);
        assert_eq!(link_findings("CONTRIBUTING.md", "[r](README.md) [a](docs/src/a.md)", &exists), [""; 0]);
        for (path, text, message) in [
            ("docs/src/b.md", "[x](a.md) [y](c.md)", "points to docs/src/c.md, which does not exist"),
            ("docs/src/b.md", "[x](../../README.md)", "leaves the book"),
            ("README.md", "[x](../a.md)", "leaves the repository"),
        ] {
            let findings = link_findings(path, text, &exists);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].contains(message), "{findings:?}");
        }
    }
}

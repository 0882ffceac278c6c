//! The topics of `trike explain`: the sections of the handbook's page on errors.

/// The page, a link to the handbook's.
const PAGE: &str = include_str!("troubleshooting.md");
/// Columns of an explanation.
const WIDTH: usize = 100;

/// A section of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Prompt,
    Model,
    File,
    Tokenizer,
    Gibberish,
    Context,
    Memory,
    Output,
    Quantize,
    Train,
    Slow,
    Gpu,
    Settings,
}

/// Topics by their names, with the headings of their sections, in the order of the page.
pub(crate) const TOPICS: &[(&str, Topic, &str)] = &[
    ("prompt", Topic::Prompt, "The prompt is taken for a model"),
    ("model", Topic::Model, "The model is not found"),
    ("file", Topic::File, "The file cannot be read"),
    ("tokenizer", Topic::Tokenizer, "The model has no tokenizer or no chat template"),
    ("gibberish", Topic::Gibberish, "The text is gibberish"),
    ("context", Topic::Context, "The prompt or the context is too long"),
    ("memory", Topic::Memory, "There is not enough memory"),
    ("output", Topic::Output, "The output cannot be written"),
    ("quantize", Topic::Quantize, "Quantizing is refused"),
    ("train", Topic::Train, "Training ends with an error"),
    ("slow", Topic::Slow, "It is slow"),
    ("gpu", Topic::Gpu, "The GPU is not used"),
    ("settings", Topic::Settings, "A setting has no effect"),
];

impl Topic {
    fn entry(self) -> (&'static str, &'static str) {
        let entry = TOPICS.iter().find(|(_, topic, _)| *topic == self);
        entry.map_or(("", ""), |(name, _, heading)| (name, heading))
    }

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        self.entry().0
    }

    /// The section of the page as plain text, below its heading.
    pub(crate) fn text(self) -> String {
        let (_, heading) = self.entry();
        format!("{heading}\n\n{}", plain(section(heading).unwrap_or_default()))
    }
}

/// The Markdown below a heading of the page.
fn section(heading: &str) -> Option<&'static str> {
    let start = PAGE.find(&format!("\n## {heading}\n"))? + "\n## ".len() + heading.len();
    let rest = &PAGE[start..];
    Some(rest[..rest.find("\n## ").unwrap_or(rest.len())].trim())
}

/// Markdown as text for a terminal: without links, with tables as lists and paragraphs filled.
fn plain(markdown: &str) -> String {
    let (mut text, mut paragraph) = (String::new(), String::new());
    let (mut is_code, mut header) = (false, Vec::new());
    for line in markdown.lines() {
        if let Some(rows) = line.strip_prefix('|').filter(|_| !is_code) {
            fill(&mut text, &mut paragraph);
            let cells: Vec<&str> = rows.trim_end_matches('|').split(" | ").map(str::trim).collect();
            if header.is_empty() {
                header = cells;
            } else if !rows.starts_with("---") {
                for (at, cell) in cells.iter().enumerate() {
                    let (indent, name) = match header.get(at) {
                        Some(name) if at > 0 => ("    ", format!("{name}: ")),
                        _ => ("* ", String::new()),
                    };
                    paragraph = format!("{indent}{name}{cell}");
                    fill(&mut text, &mut paragraph);
                }
            }
            continue;
        }
        header = Vec::new();
        if line.starts_with("```") {
            fill(&mut text, &mut paragraph);
            is_code = !is_code;
        } else if is_code {
            text += &format!("    {line}\n");
        } else if line.is_empty() {
            fill(&mut text, &mut paragraph);
            text += if text.ends_with("\n\n") { "" } else { "\n" };
        } else if line.starts_with("* ") {
            fill(&mut text, &mut paragraph);
            line.clone_into(&mut paragraph);
        } else {
            paragraph += if paragraph.is_empty() { "" } else { " " };
            paragraph += line.trim();
        }
    }
    fill(&mut text, &mut paragraph);
    text
}

/// Appends a paragraph in lines of at most [`WIDTH`] columns. The lines of an item of a list are indented.
fn fill(text: &mut String, paragraph: &mut String) {
    let content = without_links(paragraph);
    let (first, next) = match content.strip_prefix("* ") {
        Some(_) => ("* ", "  "),
        None if content.starts_with("    ") => ("    ", "      "),
        None => ("", ""),
    };
    let mut line = String::new();
    for word in content.strip_prefix(first).unwrap_or_default().split_whitespace() {
        if line.is_empty() {
            line = format!("{first}{word}");
        } else if line.chars().count() + 1 + word.chars().count() <= WIDTH {
            line += &format!(" {word}");
        } else {
            *text += &format!("{line}\n");
            line = format!("{next}{word}");
        }
    }
    if !line.is_empty() {
        *text += &format!("{line}\n");
    }
    paragraph.clear();
}

/// A text in which `[name](page)` is only the name.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain += before;
        let Some((name, after)) = link.split_once("](").and_then(|(name, target)| {
            Some((name, target.split_once(')')?.1)).filter(|_| !name.contains('['))
        }) else {
            plain.push('[');
            rest = link;
            continue;
        };
        plain += name;
        rest = after;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_heading_is_a_topic_and_every_topic_a_heading() {
        let headings: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, TOPICS.iter().map(|(_, _, heading)| *heading).collect::<Vec<_>>());
        for (name, topic, _) in TOPICS {
            assert_eq!(topic.name(), *name);
            let text = topic.text();
            assert!(text.lines().count() > 3 && text.ends_with('\n'), "{text}");
            for part in ["](", "```", "\n|", "\n\n\n"] {
                assert!(!text.contains(part), "{name}: {part:?}\n{text}");
            }
        }
    }

    #[test]
    fn markdown_becomes_plain_text() {
        let markdown = "A [link](a.md#b) and [no link,\nor `x[0]`.\n\n| message | what to do |\n|---|---|\n| `m` | try [it](c) |\n\
                        \n```sh\ntrike run\n```\n\n* one\n  two\n* three";
        let want = "A link and [no link, or `x[0]`.\n\n* `m`\n    what to do: try it\n\n    trike run\n\n* one two\n* three\n";
        assert_eq!(plain(markdown), want);
        let long = format!("* {}", "word ".repeat(40));
        let filled = plain(&long);
        assert!(filled.lines().all(|line| line.len() <= WIDTH), "{filled}");
        assert!(filled.lines().skip(1).all(|line| line.starts_with("  word")), "{filled}");
    }
}

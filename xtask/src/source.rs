//! Rust source without comments, strings and tests, for text-based checks.

/// Blanks comments, strings and character literals; line breaks are kept.
pub(crate) fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = blank_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// The end of the comment or literal that starts at `at`; `at` itself if there is none.
fn blank_end(chars: &[char], at: usize) -> usize {
    let next = |ahead: usize| chars.get(at + ahead).copied();
    let in_word = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match chars[at] {
        '/' if next(1) == Some('/') => {
            at + chars[at..].iter().position(|c| *c == '\n').unwrap_or(chars.len() - at)
        }
        '/' if next(1) == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at),
        'r' if !in_word => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            if next(1 + hashes) == Some('"') { raw_string_end(chars, at + 2 + hashes, hashes) } else { at }
        }
        // A lifetime has no closing quote at these positions.
        '\'' if next(1) == Some('\\') => {
            let close = chars[at + 3..].iter().position(|c| *c == '\'');
            close.map_or(chars.len(), |ahead| at + 3 + ahead + 1)
        }
        '\'' if next(2) == Some('\'') => at + 3,
        _ => at,
    }
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => {
                (depth, i) = (depth - 1, i + 2);
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], start: usize, hashes: usize) -> usize {
    let closes = |i: usize| {
        chars[i] == '"'
            && chars[i + 1..].len() >= hashes
            && chars[i + 1..].iter().take(hashes).all(|c| *c == '#')
    };
    (start..chars.len()).find(|i| closes(*i)).map_or(chars.len(), |i| i + 1 + hashes)
}

/// Blanks items under `#[cfg(test)]`, such as inline modules. For test modules in separate files (`mod tests;`),
/// returns their names.
pub(crate) fn without_tests(code: &str) -> (String, Vec<String>) {
    let (mut out, mut rest, mut modules) = (String::new(), code, Vec::new());
    while let Some(start) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..start]);
        let item = &rest[start..];
        // A declaration ends with a semicolon, all other items with a closing brace.
        let mut brackets = 0;
        let ends = |c: char| {
            brackets += i32::from(c == '[') - i32::from(c == ']');
            brackets == 0 && matches!(c, ';' | '{')
        };
        let end = match item.find(ends) {
            Some(at) if item[at..].starts_with(';') => {
                let words: Vec<&str> = item[..at].split_whitespace().collect();
                if let [.., "mod", name] = words[..] {
                    modules.push(name.to_owned());
                }
                at + 1
            }
            Some(at) => at + braces_end(&item[at..]),
            None => item.len(),
        };
        out.extend(item[..end].chars().filter(|c| *c == '\n'));
        rest = &item[end..];
    }
    out.push_str(rest);
    (out, modules)
}

/// Length of the braced text at the start of `code`.
fn braces_end(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Whether `word` occurs outside of longer identifiers.
pub(crate) fn contains_word(line: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let needs_edge = |c: Option<char>| c.is_some_and(in_word);
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let joined_left = needs_edge(word.chars().next()) && needs_edge(before);
        let joined_right = needs_edge(word.chars().next_back()) && needs_edge(after);
        !joined_left && !joined_right
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank() {
        for (text, kept) in [
            ("a // unsafe\nb", "a b"),
            ("/* x /* unsafe */ y */ a", "a"),
            ("f(\"unsafe \\\" {\", b)", "f( , b)"),
            ("r#\"unsafe \" {\"# + r\"}\"", "+"),
            ("('{', '\\'', '\\u{7b}', 'a')", "( , , , )"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("for r in rows {}", "for r in rows {}"),
        ] {
            let code = code(text);
            assert_eq!(code.chars().count(), text.chars().count(), "{text}");
            assert_eq!(code.lines().count(), text.lines().count(), "{text}");
            assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), kept, "{text}");
        }
    }

    #[test]
    fn tests_are_left_out() {
        let text = "use a;\n#[cfg(test)]\nmod tests {\n  fn b() { c }\n}\nfn d() {}\n#[cfg(test)]\nmod e;\n\
                    #[cfg(test)]\nfn g(x: [u8; 4]) { h }\nuse f;\n";
        let (code, modules) = without_tests(text);
        assert_eq!(
            code.split_whitespace().collect::<Vec<_>>(),
            ["use", "a;", "fn", "d()", "{}", "use", "f;"]
        );
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(modules, ["e"]);
    }
}

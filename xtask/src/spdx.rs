//! SPDX license expressions, to the extent used by registry crates.

/// Whether the expression can be satisfied with licences for which `allowed` is true.
///
/// `None` for an invalid expression. `A/B` is an old spelling of `A OR B`; a licence with an exception is one licence,
/// passed with its full name.
pub(crate) fn satisfied(expression: &str, allowed: &dyn Fn(&str) -> bool) -> Option<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { tokens: &tokens, allowed };
    let value = parser.either()?;
    parser.tokens.is_empty().then_some(value)
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    allowed: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    /// `OR` binds weaker than `AND`.
    fn either(&mut self) -> Option<bool> {
        let mut value = self.both()?;
        while self.take("OR") {
            // Always parse the right side, so that its tokens are consumed.
            let right = self.both()?;
            value = value || right;
        }
        Some(value)
    }

    fn both(&mut self) -> Option<bool> {
        let mut value = self.one()?;
        while self.take("AND") {
            let right = self.one()?;
            value = value && right;
        }
        Some(value)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let value = self.either()?;
            return self.take(")").then_some(value);
        }
        let name = self.word()?;
        if self.take("WITH") {
            let exception = self.word()?;
            return Some((self.allowed)(&format!("{name} WITH {exception}")));
        }
        Some((self.allowed)(name))
    }

    fn take(&mut self, token: &str) -> bool {
        let there = self.tokens.first() == Some(&token);
        if there {
            self.tokens = &self.tokens[1..];
        }
        there
    }

    fn word(&mut self) -> Option<&'a str> {
        let (word, rest) = self.tokens.split_first()?;
        if ["(", ")", "AND", "OR", "WITH"].contains(word) {
            return None;
        }
        self.tokens = rest;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_evaluate_over_the_allowed_licences() {
        let allowed = |name: &str| ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].contains(&name);
        for (expression, expected) in [
            ("MIT", Some(true)),
            ("GPL-3.0", Some(false)),
            ("GPL-3.0 OR MIT", Some(true)),
            ("MIT/Apache-2.0", Some(true)),
            ("Apache-2.0 / GPL-3.0", Some(false)),
            ("MIT AND GPL-3.0", Some(false)),
            ("(MIT OR Apache-2.0) AND Zlib", Some(true)),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", Some(false)),
            ("GPL-3.0 AND Zlib OR MIT", Some(true)),
            ("MIT OR GPL-3.0 AND Zlib", Some(true)),
            ("Apache-2.0 WITH LLVM-exception", Some(true)),
            ("Apache-2.0 WITH Other-exception", Some(false)),
            ("", None),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT GPL-3.0", None),
        ] {
            assert_eq!(satisfied(expression, &allowed), expected, "{expression}");
        }
    }
}

//! Seeded texts of mixed scripts: Latin, Cyrillic, CJK, Arabic and Hebrew, Devanagari and Thai, emoji (with
//! joiners, skin tones and flags), combining marks, control characters, digits of several scripts, white space,
//! signs, private-use and supplementary characters.
//!
//! `tests/data/tokenizer/mixed_llama3.py` generates the same texts; change both together.

use trike_testkit::Rng;

const CLASSES: &[&[(u32, u32)]] = &[
    &[(0x61, 0x7a), (0x41, 0x5a), (0xc0, 0xd6), (0xe0, 0xf6)],
    &[(0x430, 0x44f), (0x410, 0x42f), (0x451, 0x451)],
    &[(0x4e00, 0x4fff), (0x3041, 0x3096), (0x30a1, 0x30fa), (0xac00, 0xae00)],
    &[(0x621, 0x63a), (0x641, 0x64a), (0x64b, 0x652), (0x5d0, 0x5ea)],
    &[(0x905, 0x939), (0x93e, 0x94d), (0xe01, 0xe30)],
    &[(0x1f600, 0x1f64f), (0x1f300, 0x1f5ff), (0x2600, 0x26ff)],
    &[(0x300, 0x36f), (0x1ab0, 0x1abe), (0x20d0, 0x20dc)],
    &[(0x1, 0x1f), (0x7f, 0x9f), (0x200b, 0x200f), (0xfeff, 0xfeff)],
    &[(0x30, 0x39), (0x660, 0x669), (0x966, 0x96f), (0xbc, 0xbe)],
    &[(0x20, 0x20), (0x20, 0x20), (0x9, 0xa), (0xd, 0xd), (0xa0, 0xa0), (0x3000, 0x3000)],
    &[(0x21, 0x2f), (0x3a, 0x40), (0x5b, 0x60), (0x7b, 0x7e), (0x3001, 0x3011)],
    &[(0x10_fff0, 0x10_fffd), (0xe000, 0xe010), (0x1d400, 0x1d4ff), (0x20000, 0x20040)],
];

const FIXED: &[&str] = &[
    "\u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467}",
    "\u{1F44B}\u{1F3FD}",
    "\u{1F1FA}\u{1F1E6}",
    "I'LL we're DON'T it's",
    "e\u{301}a\u{308}",
    "  \n\n \t ",
];

/// The same 500 texts every time.
pub(crate) fn texts() -> Vec<String> {
    let mut rng = Rng::new(2024);
    (0..500).map(|_| text(&mut rng)).collect()
}

fn text(rng: &mut Rng) -> String {
    let mut text = String::new();
    for _ in 0..=rng.below(12) {
        let kind = rng.below(CLASSES.len() + 1);
        let Some(ranges) = CLASSES.get(kind) else {
            text.push_str(FIXED[rng.below(FIXED.len())]);
            continue;
        };
        for _ in 0..=rng.below(8) {
            let (low, high) = ranges[rng.below(ranges.len())];
            let code = low + rng.below((high - low + 1) as usize) as u32;
            text.push(char::from_u32(code).expect("the classes hold no surrogates"));
        }
        if rng.below(2) == 1 {
            text.push(' ');
        }
    }
    text
}

//! The text of `nvdisasm -c` as instructions.

use anyhow::{Context, Result, ensure};
use std::collections::HashMap;

/// One machine instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// The predicate under which it takes effect, without `@`: `P0`, `!UP1`.
    pub(crate) predicate: Option<String>,
    /// The operation without modifiers: `LDG`.
    pub(crate) name: String,
    /// The modifiers: `E`, `128`, `CONSTANT`.
    pub(crate) modifiers: Vec<String>,
    /// Operands without spaces: `R4`, `desc[UR6][R8.64+0x14]`.
    pub(crate) operands: Vec<String>,
    /// The instruction that a branch continues at, as an index; `None` for other instructions.
    pub(crate) target: Option<usize>,
}

impl Instruction {
    /// Whether the operation has a modifier.
    pub(crate) fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }

    /// Width of a load, store or move in 32-bit registers: `.128` is 4, none is 1.
    pub(crate) fn width(&self) -> usize {
        let of = |m: &String| match m.as_str() {
            "64" => Some(2),
            "128" => Some(4),
            "256" => Some(8),
            _ => None,
        };
        self.modifiers.iter().find_map(of).unwrap_or(1)
    }

    /// Bytes per lane of a load or store.
    pub(crate) fn bytes(&self) -> usize {
        let narrow = |m: &String| match m.as_str() {
            "U8" | "S8" => Some(1),
            "U16" | "S16" => Some(2),
            _ => None,
        };
        self.modifiers.iter().find_map(narrow).unwrap_or(4 * self.width())
    }
}

/// Instructions in order of their addresses.
///
/// # Errors
/// When there are none, or a branch has no known target.
pub(crate) fn parse(listing: &str) -> Result<Vec<Instruction>> {
    let mut labels = HashMap::new();
    let mut all: Vec<(Instruction, Option<&str>)> = Vec::new();
    for line in listing.lines() {
        if let Some(text) = body(line) {
            all.push(instruction(text).with_context(|| format!("not an instruction: {line}"))?);
        } else if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, all.len());
        }
    }
    ensure!(!all.is_empty(), "the listing has no instruction");
    let count = all.len();
    let resolve = |(mut instruction, label): (Instruction, Option<&str>)| {
        if let Some(label) = label {
            let at = labels.get(label).filter(|&&at| at < count);
            instruction.target = Some(*at.with_context(|| format!("no instruction has the label {label}"))?);
        }
        Ok(instruction)
    };
    all.into_iter().map(resolve).collect()
}

/// The text between the address and the semicolon: `/*0230*/  @P0 BRA ...`, and a semicolon.
fn body(line: &str) -> Option<&str> {
    let (address, text) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    let is_address = !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit());
    let text = text.split_once(';')?.0.trim();
    (is_address && !text.is_empty()).then_some(text)
}

/// An instruction, and the label that a branch names.
fn instruction(text: &str) -> Option<(Instruction, Option<&str>)> {
    let (predicate, text) = match text.strip_prefix('@') {
        Some(guarded) => guarded.split_once(char::is_whitespace).map(|(p, rest)| (Some(p), rest.trim()))?,
        None => (None, text),
    };
    let (operation, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let mut parts = operation.split('.').map(str::to_owned);
    let name = parts.next().filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))?;
    let label = if name == "BRA" {
        operands.split_once("`(").and_then(|(_, rest)| rest.split_once(')')).map(|(label, _)| label)
    } else {
        None
    };
    let operands = operands.split(',').map(|part| part.split_whitespace().collect::<String>());
    let found = Instruction {
        predicate: predicate.filter(|p| *p != "PT").map(str::to_owned),
        name,
        modifiers: parts.collect(),
        operands: operands.filter(|part| !part.is_empty()).collect(),
        target: None,
    };
    Some((found, label))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "
k:
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/               @P0 LDG.E.128.CONSTANT R4, desc[UR6][R8.64+0x14] ;
        /*0020*/                   IMAD.MOV.U32 R19, RZ, RZ, RZ ;  /* 0x1 */
        /*0030*/              @!P1 BRA `(.L_x_1) ;
        /*0040*/                   NOP;
.L_x_2:
";

    #[test]
    fn instructions_have_predicates_modifiers_operands_and_targets() {
        let all = parse(LISTING).unwrap();
        assert_eq!(all.len(), 5);
        assert_eq!((all[1].predicate.as_deref(), all[1].name.as_str()), (Some("P0"), "LDG"));
        assert_eq!(all[1].operands, ["R4", "desc[UR6][R8.64+0x14]"]);
        assert_eq!((all[1].width(), all[1].bytes(), all[1].target), (4, 16, None));
        assert!(all[1].has("CONSTANT") && !all[1].has("64"));
        assert_eq!(all[2].operands, ["R19", "RZ", "RZ", "RZ"]);
        assert_eq!((all[3].predicate.as_deref(), all[3].target), (Some("!P1"), Some(1)));
        assert!(all[4].operands.is_empty());
    }

    #[test]
    fn half_a_listing_is_refused() {
        assert!(parse("").is_err());
        let missing = parse("/*0000*/ BRA `(.L_x_9) ;").unwrap_err().to_string();
        assert!(missing.contains(".L_x_9"), "{missing}");
        // A label at the end, after the last instruction, is no target.
        assert!(parse("/*0000*/ BRA `(.L_x_9) ;\n.L_x_9:").is_err());
    }
}

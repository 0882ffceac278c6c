//! The registers that an instruction reads and writes.

use super::parse::Instruction;

/// Registers as numbers: `R0` to `R254`, then the uniform registers `UR0` onwards.
pub(crate) const COUNT: usize = 512;
/// The first uniform register.
const UNIFORM: usize = 256;

/// The registers of one instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) read: Vec<usize>,
    pub(crate) written: Vec<usize>,
}

impl Registers {
    pub(crate) fn of(instruction: &Instruction) -> Self {
        let mut found = Self::default();
        let mut destination = destination(instruction);
        let mut source = 0;
        for operand in &instruction.operands {
            if is_predicate(operand) {
                continue;
            }
            if std::mem::take(&mut destination) {
                // `RZ` discards the result.
                found.written.extend(numbers(operand, width_written(instruction)));
            } else {
                found.read.extend(numbers(operand, width_read(instruction, source, operand)));
                source += 1;
            }
        }
        found
    }
}

/// Whether the first operand that is not a predicate is the result.
fn destination(instruction: &Instruction) -> bool {
    let without = [
        "STG",
        "STS",
        "ST",
        "STL",
        "STSM",
        "RED",
        "REDG",
        "BAR",
        "BRA",
        "EXIT",
        "DEPBAR",
        "LDGSTS",
        "LDGDEPBAR",
        "NOP",
        "BSSY",
        "BSYNC",
        "ISETP",
        "FSETP",
        "HSETP2",
        "DSETP",
        "PLOP3",
        "UPLOP3",
        "UISETP",
        "R2P",
        "WARPSYNC",
        "MEMBAR",
        "CCTL",
        "RET",
        "CALL",
        "BRX",
        "YIELD",
        "UBLKCP",
        "SYNCS",
        "NANOSLEEP",
        "ERRBAR",
    ];
    !without.contains(&instruction.name.as_str())
}

/// 32-bit registers of the result.
fn width_written(instruction: &Instruction) -> usize {
    let wide =
        instruction.has("WIDE") || instruction.name.ends_with("MA2") || instruction.name.starts_with('D');
    match instruction.name.as_str() {
        "IMMA" if instruction.has("8816") || instruction.has("8832") => 2,
        "HMMA" if !instruction.has("F32") => 2,
        "IMMA" | "HMMA" | "QMMA" | "OMMA" | "BMMA" => 4,
        "LDSM" if instruction.has("4") => 4,
        "LDSM" if instruction.has("2") => 2,
        "CS2R" if !instruction.has("32") => 2,
        "HFMA2" => 1,
        _ if wide => 2,
        _ => instruction.width(),
    }
}

/// 32-bit registers of a source, counted without the result and predicates.
fn width_read(instruction: &Instruction, source: usize, operand: &str) -> usize {
    if operand.contains('[') {
        return 1;
    }
    let matrix = |widths: [usize; 3]| widths.get(source).copied().unwrap_or(1);
    match instruction.name.as_str() {
        "IMMA" if instruction.has("16832") => matrix([4, 2, 4]),
        "IMMA" if instruction.has("16816") => matrix([2, 1, 4]),
        "HMMA" if instruction.has("16816") => matrix([4, 2, if instruction.has("F32") { 4 } else { 2 }]),
        "HMMA" => matrix([2, 1, if instruction.has("F32") { 4 } else { 2 }]),
        "QMMA" | "BMMA" => matrix([4, 2, 4]),
        "STG" | "STS" | "ST" | "STL" => instruction.width(),
        "IMAD" | "UIMAD" if instruction.has("WIDE") && source == 2 => 2,
        "FFMA2" => 2,
        name if name.starts_with('D') && name != "DEPBAR" => 2,
        _ => 1,
    }
}

fn is_predicate(operand: &str) -> bool {
    let name = operand.trim_start_matches('!');
    let name = name.strip_prefix('U').unwrap_or(name);
    let number = name.strip_prefix('P');
    number.is_some_and(|n| n == "T" || (!n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit())))
}

/// The registers that an operand names: `-R7.reuse`, `R8.64`, `desc[UR6][R8.64+0x14]`, `c[0x0][UR4]`.
pub(crate) fn numbers(operand: &str, width: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
    for token in operand.split(|c| !word(c)).filter(|token| !token.is_empty()) {
        let (name, suffix) = token.split_once('.').unwrap_or((token, ""));
        let (digits, base) = match name.strip_prefix("UR") {
            Some(digits) => (digits, UNIFORM),
            None => (name.strip_prefix('R').unwrap_or_default(), 0),
        };
        // `RZ` and `URZ` are zero, not registers.
        let Ok(number) = digits.parse::<usize>() else { continue };
        // A 64-bit address; descriptors are pairs of uniform registers.
        let pair = suffix.starts_with("64") || (base == UNIFORM && operand.starts_with("desc["));
        let width = if pair { width.max(2) } else { width };
        found.extend((number..number + width).map(|n| base + n).filter(|&n| n < COUNT));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    #[test]
    fn reads_and_writes_follow_the_operation() {
        let range = |from: usize, count: usize| (from..from + count).collect::<Vec<_>>();
        let table: [(&str, Vec<usize>, Vec<usize>); 13] = [
            ("LDG.E.128.CONSTANT R4, desc[UR6][R8.64+0x14]", range(4, 4), vec![262, 263, 8, 9]),
            ("IDP.4A.S8.S8 R11, R12.reuse, -R15, R10", vec![11], vec![12, 15, 10]),
            (
                "IMMA.16832.S8.S8 R4, R8.ROW, R12.COL, R4",
                range(4, 4),
                [range(8, 4), range(12, 2), range(4, 4)].concat(),
            ),
            ("HMMA.16816.F32 R20, R8, R12, RZ", range(20, 4), [range(8, 4), range(12, 2)].concat()),
            ("IMAD.WIDE R8, R9, 0x10, R4", vec![8, 9], vec![9, 4, 5]),
            ("LEA R12, P0, R18, UR4, 0x4", vec![12], vec![18, 260]),
            ("ISETP.GE.AND P0, PT, R16, R17, PT", vec![], vec![16, 17]),
            ("LOP3.LUT P0, RZ, R2, 0x3, RZ, 0xc0, !PT", vec![], vec![2]),
            ("STG.E.64 desc[UR6][R2.64], R18", vec![], vec![262, 263, 2, 3, 18, 19]),
            ("STS [R3+UR4], R10", vec![], vec![3, 260, 10]),
            ("SHFL.BFLY PT, R5, R4, 0x1, 0x1f", vec![5], vec![4]),
            ("LDC.64 R2, c[0x0][0x218]", vec![2, 3], vec![]),
            ("BRA `(.L_x_1)", vec![], vec![]),
        ];
        for (text, written, read) in table {
            let listing = format!("/*0000*/ {text} ;\n").replace(".L_x_1", "k");
            let parsed = parse(&format!("k:\n{listing}")).unwrap();
            assert_eq!(Registers::of(&parsed[0]), Registers { read, written }, "{text}");
        }
    }
}

//! Loads in flight: the kernel argument that each load reads, and the bytes that a warp waits for.

use std::collections::{BTreeMap, BTreeSet};

use super::flow::successors;
use super::parse::Instruction;
use super::registers::{COUNT, Registers, numbers};

/// Lanes of a warp.
const LANES: usize = 32;

/// For each instruction that reads global memory: a bit for each kernel argument (the first 64 of eight bytes) that its
/// address depends on. Arguments lie in the constant bank from `base` on.
pub(crate) fn sources(code: &[Instruction], registers: &[Registers], base: usize) -> BTreeMap<usize, u64> {
    let mut found = BTreeMap::new();
    // States are kept where paths start or meet.
    let mut before: BTreeMap<usize, Option<Vec<u64>>> =
        leaders(code).into_iter().map(|at| (at, None)).collect();
    let mut open = vec![(0, vec![0; COUNT])];
    while let Some((first, arriving)) = open.pop() {
        let Some(mut state) = merged(before.entry(first).or_default(), &arriving) else { continue };
        let mut at = first;
        loop {
            if reads_global(&code[at]) {
                *found.entry(at).or_default() |= address(&code[at], &state);
            }
            apply(&code[at], &registers[at], base, &mut state);
            let following = successors(code, at);
            match following[..] {
                [next] if !before.contains_key(&next) => at = next,
                _ => {
                    open.extend(following.into_iter().map(|next| (next, state.clone())));
                    break;
                }
            }
        }
    }
    found
}

/// Instructions that follow a branch or are the target of one.
fn leaders(code: &[Instruction]) -> BTreeSet<usize> {
    let mut leaders = BTreeSet::from([0]);
    for at in 0..code.len() {
        let following = successors(code, at);
        if following != [at + 1] {
            leaders.extend(following);
        }
    }
    leaders
}

/// The union of a kept state and an arriving one, unless the latter adds nothing.
fn merged(kept: &mut Option<Vec<u64>>, arriving: &[u64]) -> Option<Vec<u64>> {
    let Some(kept) = kept else {
        return Some(kept.insert(arriving.to_vec()).clone());
    };
    let adds = kept.iter().zip(arriving).any(|(&kept, &more)| kept | more != kept);
    for (kept, &more) in kept.iter_mut().zip(arriving) {
        *kept |= more;
    }
    adds.then(|| kept.clone())
}

/// The arguments that the address of a load depends on; an asynchronous copy names its place in shared memory first.
fn address(load: &Instruction, state: &[u64]) -> u64 {
    let address = load.operands.iter().rfind(|operand| operand.contains('['));
    let registers = address.map(|operand| numbers(operand, 1)).unwrap_or_default();
    registers.into_iter().fold(0, |all, register| all | state[register])
}

/// Arguments that registers depend on, after an instruction.
fn apply(instruction: &Instruction, registers: &Registers, base: usize, state: &mut [u64]) {
    let of_constants = instruction.operands.iter().filter_map(|o| argument(o, base));
    let mut found = of_constants.fold(0, |all, argument| all | 1 << argument);
    let is_load = matches!(instruction.name.as_str(), "LDG" | "LDS" | "LDL" | "LD" | "LDSM");
    if !is_load {
        found = registers.read.iter().fold(found, |all, &register| all | state[register]);
    }
    for &register in &registers.written {
        // Under a predicate the register may keep what it had.
        state[register] = found | if instruction.predicate.is_some() { state[register] } else { 0 };
    }
}

/// The argument that `c[0x0][0x210]` is part of.
fn argument(operand: &str, base: usize) -> Option<u32> {
    let (_, rest) = operand.split_once("c[0x0][0x")?;
    let offset = usize::from_str_radix(rest.split_once(']')?.0, 16).ok()?;
    u32::try_from(offset.checked_sub(base)? / 8).ok().filter(|&argument| argument < 64)
}

/// Whether an instruction reads global memory, into registers or shared memory.
pub(crate) fn reads_global(instruction: &Instruction) -> bool {
    matches!(instruction.name.as_str(), "LDG" | "LDGSTS" | "LD")
}

/// The most bytes per warp that are in flight at one time, of the loads among `counted`, in the steady state of a loop.
///
/// A load is in flight from its issue to the first instruction that reads or overwrites one of its registers, an
/// asynchronous copy until the wait for its group.
pub(crate) fn in_flight(
    code: &[Instruction],
    registers: &[Registers],
    body: &[usize],
    counted: impl Fn(usize) -> bool,
) -> usize {
    const LAPS: usize = 4;
    let mut pending: Vec<Pending> = Vec::new();
    let mut groups = 0;
    let mut most = 0;
    for lap in 0..LAPS {
        for &at in body {
            let instruction = &code[at];
            let touched = |r: &usize| registers[at].read.contains(r) || registers[at].written.contains(r);
            pending.retain(|load| !load.registers.iter().any(touched));
            match instruction.name.as_str() {
                "LDGDEPBAR" => groups += 1,
                "DEPBAR" => {
                    let allowed = instruction.operands.get(1).and_then(|n| number(n)).unwrap_or(0);
                    // A copy belongs to the group that is committed next.
                    pending.retain(|load| load.group.is_none_or(|group| group + allowed >= groups));
                }
                _ => {}
            }
            if reads_global(instruction) && counted(at) {
                let group = (instruction.name == "LDGSTS").then_some(groups);
                let bytes = LANES * instruction.bytes();
                pending.push(Pending { bytes, registers: registers[at].written.clone(), group });
            }
            if lap + 1 == LAPS {
                most = most.max(pending.iter().map(|load| load.bytes).sum());
            }
        }
    }
    most
}

struct Pending {
    bytes: usize,
    registers: Vec<usize>,
    group: Option<usize>,
}

fn number(text: &str) -> Option<usize> {
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    fn code(lines: &[&str]) -> (Vec<Instruction>, Vec<Registers>) {
        let mut listing = String::new();
        for (at, line) in lines.iter().enumerate() {
            listing += &format!("L{at}:\n/*{:04x}*/ {line} ;\n", 16 * at);
        }
        let code = parse(&listing).unwrap();
        let registers = code.iter().map(Registers::of).collect();
        (code, registers)
    }

    fn most(lines: &[&str]) -> usize {
        let (code, registers) = code(lines);
        let body: Vec<usize> = (0..code.len()).collect();
        in_flight(&code, &registers, &body, |_| true)
    }

    #[test]
    fn a_load_is_in_flight_until_one_of_its_registers_is_read() {
        let load = "LDG.E.128 R4, desc[UR6][R8.64]";
        assert_eq!(most(&[load, "IADD3 R0, R7, R0, RZ"]), 512);
        // Two loads, of which the second is read first.
        let other = "LDG.E.64 R20, desc[UR6][R10.64]";
        assert_eq!(most(&[load, other, "IADD3 R0, R21, R0, RZ", "IADD3 R0, R4, R0, RZ"]), 768);
        // Read in the next iteration: what comes before the load again is after its issue.
        let ahead = ["IADD3 R0, R4, R0, RZ", load, "MOV R1, R2", "MOV R1, R3"];
        assert_eq!(most(&ahead), 512);
        // A ring of two, each read an iteration later.
        let ring = ["IADD3 R0, R4, R0, RZ", load, "IADD3 R0, R20, R0, RZ", other];
        assert_eq!(most(&ring), 768);
        // Never read, but overwritten by the next load of the same registers.
        assert_eq!(most(&[load, "MOV R1, R2"]), 512);
    }

    #[test]
    fn asynchronous_copies_are_in_flight_until_their_group_is_waited_for() {
        let copy = "LDGSTS.E.BYPASS.128 [R3], desc[UR6][R8.64]";
        let stages =
            |allowed: &'static str| [copy, copy, "LDGDEPBAR", allowed, "BAR.SYNC.DEFER_BLOCKING 0x0"];
        assert_eq!(most(&stages("DEPBAR.LE SB0, 0x0")), 1024);
        assert_eq!(most(&stages("DEPBAR.LE SB0, 0x1")), 2048);
        assert_eq!(most(&stages("DEPBAR.LE SB0, 0x2")), 3072);
    }

    #[test]
    fn loads_are_traced_to_their_argument() {
        let (code, registers) = code(&[
            "LDC.64 R2, c[0x0][0x210]",
            "ULDC.64 UR4, c[0x0][0x218]",
            "IMAD.WIDE R4, R9, 0x10, R2",
            "IADD3 R6, P0, R9, UR4, RZ",
            "IADD3.X R7, R10, UR5, RZ, P0, !PT",
            "LDG.E.128 R12, desc[UR6][R4.64]",
            "LDG.E.128 R16, desc[UR6][R6.64+0x40]",
            "IADD3 R6, R12, R6, RZ",
            "LDG.E R2, desc[UR6][R6.64]",
            "@P0 BRA `(L2)",
        ]);
        let found = sources(&code, &registers, 0x210);
        // The last load's address has a loaded index, which belongs to no argument, and the second pointer.
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(5, 1), (6, 2), (8, 2)]);
    }
}

//! The control flow of a kernel: basic blocks, dominators, loops.

use std::collections::{BTreeMap, BTreeSet};

use super::parse::Instruction;

/// A loop: its instructions in order of their addresses, without those of loops inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    /// Indices of instructions.
    pub(crate) body: Vec<usize>,
    /// Instructions that an iteration may jump over.
    pub(crate) conditional: usize,
}

/// Instructions after which control may continue.
pub(crate) fn successors(code: &[Instruction], at: usize) -> Vec<usize> {
    let instruction = &code[at];
    let next = (at + 1 < code.len()).then_some(at + 1);
    let ends = matches!(instruction.name.as_str(), "EXIT" | "RET" | "BRX" | "KILL");
    match instruction.target {
        // Never taken where the lanes of a warp run together: the way of lanes that do not is out of line.
        Some(_) if instruction.has("DIV") => next.into_iter().collect(),
        Some(target) if is_conditional(instruction) => next.into_iter().chain([target]).collect(),
        Some(target) => vec![target],
        None if ends && instruction.predicate.is_none() => Vec::new(),
        None => next.into_iter().collect(),
    }
}

/// Whether a branch may fall through: under a predicate, or with one among its operands.
fn is_conditional(instruction: &Instruction) -> bool {
    instruction.predicate.is_some() || instruction.operands.len() > 1
}

/// All loops of a kernel.
pub(crate) fn loops(code: &[Instruction]) -> Vec<Loop> {
    let graph = LaunchGraph::of(code);
    let immediate = graph.dominators();
    // Natural loops by header: all blocks that reach a back edge without passing the header.
    let mut natural: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (block, ends) in graph.next.iter().enumerate() {
        for &header in ends {
            if dominates(&immediate, header, block) {
                let body = natural.entry(header).or_insert_with(|| BTreeSet::from([header]));
                let mut open = vec![block];
                while let Some(block) = open.pop() {
                    if body.insert(block) {
                        open.extend(&graph.previous[block]);
                    }
                }
            }
        }
    }
    let inside = |header: usize| {
        let body = &natural[&header];
        let inner = natural.iter().filter(|(other, _)| **other != header && body.contains(other));
        let nested: BTreeSet<usize> = inner.flat_map(|(_, blocks)| blocks.iter().copied()).collect();
        let own = body.iter().filter(|block| !nested.contains(block));
        let ends =
            (0..graph.next.len()).filter(|end| body.contains(end) && graph.next[*end].contains(&header));
        let ends: Vec<usize> = ends.collect();
        let mut found = Loop { body: Vec::new(), conditional: 0 };
        for &block in own {
            let instructions = graph.starts[block]..graph.starts[block + 1];
            if !ends.iter().all(|&end| dominates(&immediate, block, end)) {
                found.conditional += instructions.len();
            }
            found.body.extend(instructions);
        }
        found
    };
    natural.keys().map(|&header| inside(header)).collect()
}

/// Basic blocks; those that cannot be reached have no edges.
struct LaunchGraph {
    /// The first instruction of each block, and the number of instructions.
    starts: Vec<usize>,
    next: Vec<Vec<usize>>,
    previous: Vec<Vec<usize>>,
}

impl LaunchGraph {
    fn of(code: &[Instruction]) -> Self {
        let mut starts = BTreeSet::from([0, code.len()]);
        for (at, instruction) in code.iter().enumerate() {
            let following = successors(code, at);
            if instruction.target.is_some() || following != [at + 1] {
                starts.insert(at + 1);
                starts.extend(instruction.target);
            }
        }
        let starts: Vec<usize> = starts.into_iter().filter(|&at| at <= code.len()).collect();
        let count = starts.len() - 1;
        let block_of = |at: usize| starts.partition_point(|&start| start <= at) - 1;
        let mut graph =
            Self { next: vec![Vec::new(); count], previous: vec![Vec::new(); count], starts: Vec::new() };
        let mut reached = vec![false; count];
        let mut open = vec![0];
        while let Some(block) = open.pop() {
            if std::mem::replace(&mut reached[block], true) {
                continue;
            }
            for at in successors(code, starts[block + 1] - 1) {
                let next = block_of(at);
                graph.next[block].push(next);
                graph.previous[next].push(block);
                open.push(next);
            }
        }
        graph.starts = starts;
        graph
    }

    /// The immediate dominator of each block that can be reached; the entry's is itself (Cooper, Harvey and Kennedy, "A
    /// simple, fast dominance algorithm").
    fn dominators(&self) -> Vec<Option<usize>> {
        let order = self.postorder();
        let mut rank = vec![0; self.next.len()];
        for (place, &block) in order.iter().enumerate() {
            rank[block] = place;
        }
        let mut immediate = vec![None; self.next.len()];
        immediate[0] = Some(0);
        let mut is_changing = true;
        while is_changing {
            is_changing = false;
            for &block in order.iter().rev().filter(|&&block| block != 0) {
                let mut found: Option<usize> = None;
                for &before in self.previous[block].iter().filter(|&&b| immediate[b].is_some()) {
                    found = Some(found.map_or(before, |other| meet(&immediate, &rank, before, other)));
                }
                if found.is_some() && immediate[block] != found {
                    immediate[block] = found;
                    is_changing = true;
                }
            }
        }
        immediate
    }

    fn postorder(&self) -> Vec<usize> {
        let mut seen = vec![false; self.next.len()];
        seen[0] = true;
        let mut order = Vec::new();
        let mut open = vec![(0, 0)];
        while let Some((block, tried)) = open.pop() {
            match self.next[block].get(tried) {
                Some(&next) => {
                    open.push((block, tried + 1));
                    if !std::mem::replace(&mut seen[next], true) {
                        open.push((next, 0));
                    }
                }
                None => order.push(block),
            }
        }
        order
    }
}

/// The closest block that dominates both.
fn meet(immediate: &[Option<usize>], rank: &[usize], a: usize, b: usize) -> usize {
    let (mut a, mut b) = (a, b);
    while a != b {
        let lower = if rank[a] < rank[b] { &mut a } else { &mut b };
        *lower = immediate[*lower].unwrap_or(0);
    }
    a
}

fn dominates(immediate: &[Option<usize>], header: usize, block: usize) -> bool {
    let mut at = block;
    loop {
        if at == header {
            return immediate[at].is_some();
        }
        match immediate[at] {
            Some(above) if above != at => at = above,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    fn bodies(lines: &[&str]) -> Vec<Vec<usize>> {
        let mut listing = String::new();
        for (at, line) in lines.iter().enumerate() {
            listing += &format!("L{at}:\n/*{:04x}*/ {line} ;\n", 16 * at);
        }
        loops(&parse(&listing).unwrap()).into_iter().map(|l| l.body).collect()
    }

    #[test]
    fn a_loop_ends_at_its_branch_and_has_no_part_of_a_loop_inside() {
        let nested =
            ["MOV R0, RZ", "MOV R1, RZ", "IADD3 R1, R1, 0x1, RZ", "@P0 BRA `(L2)", "@P1 BRA `(L1)", "EXIT"];
        assert_eq!(bodies(&nested), [vec![1, 4], vec![2, 3]]);
        // A block that jumps to itself behind the end, as after every kernel.
        assert!(bodies(&["EXIT", "BRA `(L1)"]).is_empty());
        // A branch over line 2.
        assert_eq!(bodies(&["NOP", "@P0 BRA `(L3)", "NOP", "@P1 BRA `(L0)", "EXIT"]), [vec![0, 1, 2, 3]]);
    }

    #[test]
    fn instructions_behind_a_branch_are_conditional() {
        let of = |lines: &str| {
            let found = loops(&parse(lines).unwrap());
            (found[0].body.len(), found[0].conditional)
        };
        let skip = "L0:\n/*00*/ NOP ;\n/*10*/ @P0 BRA `(L1) ;\n/*20*/ NOP ;\n/*30*/ NOP ;\nL1:\n/*40*/ NOP ;\n/*50*/ @P1 BRA `(L0) ;\n/*60*/ EXIT ;";
        assert_eq!(of(skip), (6, 2));
        assert_eq!(of("L0:\n/*00*/ NOP ;\n/*10*/ @P1 BRA `(L0) ;\n/*20*/ EXIT ;"), (2, 0));
    }

    #[test]
    fn the_way_of_diverged_lanes_is_no_loop() {
        // Lanes that do not run together do line 1 one after another at the end, and come back.
        let code = [
            "MOV R0, RZ",
            "BRA.DIV UR4, `(L5)",
            "SHFL.BFLY PT, R1, R0, 0x1, 0x1f",
            "@P0 BRA `(L1)",
            "EXIT",
            "NOP",
            "BRA `(L3)",
        ];
        assert_eq!(bodies(&code), [vec![1, 2, 3]]);
    }
}

//! Static counts of a kernel's main loop, from the machine code that `ptxas` made.
//!
//! Start from [`count`]: it reads a listing of `nvdisasm`, finds the loop with the most multiply-adds, and counts its
//! instructions by pipe, the bytes that it loads, and the bytes that are in flight. No GPU is involved: a count is a
//! property of the code, and the rate at which a device executes it is not.
//!
//! Limits of the method: a branch inside the loop counts as taken and as not taken, so that code for the last tile counts in
//! every iteration, and a load counts 32 lanes even if several read the same bytes.
//!
//! * [`parse`]: the text as instructions
//! * [`registers`], [`pipe`]: what one instruction reads, writes and occupies
//! * [`flow`]: basic blocks and loops
//! * [`flight`]: loads, the argument that each one reads, and those in flight

mod flight;
mod flow;
mod parse;
mod pipe;
mod registers;

pub(crate) use pipe::Pipe;

use anyhow::{Context, Result};

use self::flow::Loop;
use self::parse::Instruction;
use self::registers::Registers;

/// Counts of the main loop of a kernel, per warp and iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Instructions, each of which takes an issue slot.
    pub(crate) slots: usize,
    /// Those among them that an iteration may jump over.
    pub(crate) conditional: usize,
    /// Instructions by pipe, in the order of [`Pipe::ALL`].
    pub(crate) pipes: [usize; Pipe::ALL.len()],
    /// Multiply-adds of all lanes, in the pipe that the kernel is made for.
    pub(crate) macs: usize,
    /// Bytes loaded from the streamed arguments.
    pub(crate) loaded: usize,
    /// Bytes loaded from the cached arguments.
    pub(crate) cached: usize,
    /// Maximum bytes in flight of the streamed arguments.
    pub(crate) streamed: usize,
    /// Maximum bytes in flight of all loads from global memory.
    pub(crate) in_flight: usize,
}

/// The kernel arguments that are told apart, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// Offset of the first one in the constant bank.
    pub(crate) base: usize,
    /// Read once, from memory: weights, or keys and values.
    pub(crate) streamed: &'static [u32],
    /// Read by many cubes, from a cache: activations.
    pub(crate) cached: &'static [u32],
}

/// Counts the main loop of a listing.
///
/// # Errors
/// When the text is not a listing, or no loop multiplies.
pub(crate) fn count(listing: &str, arguments: Arguments) -> Result<Counts> {
    let code = parse::parse(listing)?;
    let registers: Vec<Registers> = code.iter().map(Registers::of).collect();
    let (Loop { body, conditional }, products) = main_loop(&code).context("no loop multiplies")?;
    let sources = flight::sources(&code, &registers, arguments.base);
    let reads = |at: usize, among: &[u32]| {
        let found = sources.get(&at).copied().unwrap_or(0);
        among.iter().any(|&argument| found >> argument & 1 == 1)
    };
    let mut counts = Counts { slots: body.len(), conditional, ..Counts::default() };
    for &at in &body {
        let pipe = Pipe::of(&code[at]);
        counts.pipes[pipe as usize] += 1;
        if pipe == products {
            counts.macs += macs(&code[at]);
        }
        let bytes = if flight::reads_global(&code[at]) { 32 * code[at].bytes() } else { 0 };
        if reads(at, arguments.streamed) {
            counts.loaded += bytes;
        } else if reads(at, arguments.cached) {
            counts.cached += bytes;
        }
    }
    counts.streamed = flight::in_flight(&code, &registers, &body, |at| reads(at, arguments.streamed));
    counts.in_flight = flight::in_flight(&code, &registers, &body, |_| true);
    Ok(counts)
}

/// The loop with the most products of the kind that the kernel is made for: matrix instructions before dot products before
/// single multiply-adds before population counts.
fn main_loop(code: &[Instruction]) -> Option<(Loop, Pipe)> {
    let products = |body: &[usize], pipe: Pipe| -> usize {
        let of_pipe = body.iter().map(|&at| &code[at]).filter(|i| Pipe::of(i) == pipe);
        of_pipe.map(macs).sum()
    };
    let loops = flow::loops(code);
    [Pipe::Tensor, Pipe::Dot, Pipe::Fma, Pipe::Special].into_iter().find_map(|pipe| {
        let most = loops.iter().max_by_key(|l| products(&l.body, pipe))?;
        (products(&most.body, pipe) > 0).then(|| (most.clone(), pipe))
    })
}

/// Multiply-adds of an instruction for a whole warp.
fn macs(instruction: &Instruction) -> usize {
    let has = |modifier| instruction.has(modifier);
    match instruction.name.as_str() {
        // The digits are rows, columns and depth of the product: 16 x 8 x 32.
        "IMMA" | "HMMA" | "QMMA" if has("16832") => 16 * 8 * 32,
        "IMMA" | "HMMA" if has("16816") => 16 * 8 * 16,
        "HMMA" if has("1688") => 16 * 8 * 8,
        "IMMA" if has("8816") => 8 * 8 * 16,
        "IDP" if has("4A") => 32 * 4,
        "IDP" => 32 * 2,
        "FFMA2" | "HFMA2" => 32 * 2,
        "FFMA" => 32,
        // The signs of 32 channels with one of the four bits of as many integers.
        "POPC" => 32 * 32 / 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks of weights per iteration, the second of them loaded an iteration ahead, and a second loop that adds up.
    const LISTING: &str = "
/*0000*/ LDC.64 R2, c[0x0][0x210] ;
/*0010*/ LDC.64 R4, c[0x0][0x218] ;
.L_x_1:
/*0020*/ LDG.E.128.CONSTANT R8, desc[UR6][R2.64] ;
/*0030*/ LDG.E.128.CONSTANT R12, desc[UR6][R4.64] ;
/*0040*/ LOP3.LUT R16, R20, 0x3030303, RZ, 0xc0, !PT ;
/*0050*/ LDG.E.128.CONSTANT R20, desc[UR6][R2.64+0x200] ;
/*0060*/ IDP.4A.S8.S8 R0, R16, R12, R0 ;
/*0070*/ IADD3 R2, P0, R2, 0x400, RZ ;
/*0080*/ IDP.4A.S8.S8 R0, R8, R13, R0 ;
/*0090*/ @P1 BRA `(.L_x_1) ;
.L_x_2:
/*00a0*/ LDS R8, [R9] ;
/*00b0*/ IDP.4A.S8.S8 R0, R8, R8, R0 ;
/*00c0*/ @P1 BRA `(.L_x_2) ;
/*00d0*/ EXIT ;
";

    #[test]
    fn the_loop_with_the_most_products_is_counted() {
        let weights = Arguments { base: 0x210, streamed: &[0], cached: &[1] };
        let counts = count(LISTING, weights).unwrap();
        let pipe = |pipe: Pipe| counts.pipes[pipe as usize];
        assert_eq!(counts.slots, 8);
        assert_eq!([Pipe::Dot, Pipe::Alu, Pipe::Global, Pipe::Control].map(pipe), [2, 2, 3, 1]);
        assert_eq!(counts.pipes.iter().sum::<usize>(), counts.slots);
        assert_eq!((counts.macs, counts.loaded, counts.cached), (256, 1024, 512));
        // The block at +0x200 is in flight from its issue to the next iteration's `LOP3`.
        assert_eq!((counts.streamed, counts.in_flight), (1024, 1536));
        let swapped = count(LISTING, Arguments { streamed: &[1], cached: &[0], ..weights }).unwrap();
        assert_eq!((swapped.loaded, swapped.cached, swapped.streamed), (512, 1024, 512));
    }

    #[test]
    fn population_counts_are_products_where_there_are_no_others() {
        let listing = "k:\n/*0000*/ POPC R1, R2 ;\n/*0010*/ MUFU.EX2 R3, R1 ;\n/*0020*/ @P0 BRA `(k) ;\n/*0030*/ EXIT ;";
        let none = Arguments { base: 0x210, streamed: &[0], cached: &[] };
        assert_eq!(count(listing, none).unwrap().macs, 256);
    }

    #[test]
    fn a_kernel_without_products_has_no_main_loop() {
        let listing = "k:\n/*0000*/ NOP ;\n/*0010*/ @P0 BRA `(k) ;\n/*0020*/ EXIT ;";
        assert_eq!(
            count(listing, Arguments { base: 0x210, streamed: &[0], cached: &[] }).unwrap_err().to_string(),
            "no loop multiplies"
        );
    }
}

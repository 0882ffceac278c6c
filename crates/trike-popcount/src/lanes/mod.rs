//! SIMD abstraction: the word operations from which the algorithms on trit planes are built.

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use trike_host::Loop;

/// Vectors of words of an instruction set.
///
/// Implemented by tokens, whose existence proves that the CPU has the instructions. The methods are
/// inlined into the loop that [`Lanes::run`] calls with the instruction set enabled; elsewhere they are correct
/// but slow.
pub(crate) trait Lanes: Copy + Send + Sync + 'static {
    /// [`Lanes::WORDS`] words of a plane.
    type Bits: Copy;
    /// Running counts of set bits.
    type Tally: Copy;
    /// Words in [`Lanes::Bits`], at most [`LINE_WORDS`].
    const WORDS: usize;
    /// Whether the register file holds the tallies of eight pairs of vectors, or only of two.
    const MANY_REGISTERS: bool;

    /// Runs a loop with the instruction set enabled.
    fn run<L: Loop>(self, task: L) -> L::Output;

    /// The first [`Lanes::WORDS`] words of a slice, zero-padded if it is shorter.
    fn load(self, words: &[u64]) -> Self::Bits;
    /// Writes at most [`Lanes::WORDS`] words to a slice, limited by its length.
    fn store(self, bits: Self::Bits, words: &mut [u64]);
    /// A word broadcast to all lanes.
    fn splat(self, word: u64) -> Self::Bits;

    /// `a & b`.
    fn and(self, a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// `a | b`.
    fn or(self, a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// `a ^ b`.
    fn xor(self, a: Self::Bits, b: Self::Bits) -> Self::Bits;
    /// `a & !b`.
    fn and_not(self, a: Self::Bits, b: Self::Bits) -> Self::Bits;

    /// Zero counts.
    fn none(self) -> Self::Tally;
    /// Adds the population count of `bits`.
    fn tally(self, tally: Self::Tally, bits: Self::Bits) -> Self::Tally;
    /// `a - b`, lane by lane.
    fn less(self, a: Self::Tally, b: Self::Tally) -> Self::Tally;
    /// Sum of all lanes.
    fn total(self, tally: Self::Tally) -> i64;

    /// Prefetches the line that holds the word `ahead` words after the start of a slice; it may lie past the end.
    fn prefetch(self, words: &[u64], ahead: usize);

    /// Full adder: the sum bit and the carry of three bits.
    #[inline(always)]
    fn add3(self, a: Self::Bits, b: Self::Bits, c: Self::Bits) -> (Self::Bits, Self::Bits) {
        let different = self.xor(a, b);
        (self.xor(different, c), self.or(self.and(a, b), self.and(different, c)))
    }

    /// Half adder: the sum bit and the carry of two bits.
    #[inline(always)]
    fn add2(self, a: Self::Bits, b: Self::Bits) -> (Self::Bits, Self::Bits) {
        (self.xor(a, b), self.and(a, b))
    }
}

/// Words in a cache line.
pub(crate) const LINE_WORDS: usize = 8;

/// The reference implementation: one word at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Lanes for Portable {
    type Bits = u64;
    type Tally = u64;
    const WORDS: usize = 1;
    const MANY_REGISTERS: bool = false;

    #[inline(always)]
    fn run<L: Loop>(self, task: L) -> L::Output {
        task.run()
    }

    #[inline(always)]
    fn load(self, words: &[u64]) -> u64 {
        words.first().copied().unwrap_or(0)
    }

    #[inline(always)]
    fn store(self, bits: u64, words: &mut [u64]) {
        if let Some(word) = words.first_mut() {
            *word = bits;
        }
    }

    #[inline(always)]
    fn splat(self, word: u64) -> u64 {
        word
    }

    #[inline(always)]
    fn and(self, a: u64, b: u64) -> u64 {
        a & b
    }

    #[inline(always)]
    fn or(self, a: u64, b: u64) -> u64 {
        a | b
    }

    #[inline(always)]
    fn xor(self, a: u64, b: u64) -> u64 {
        a ^ b
    }

    #[inline(always)]
    fn and_not(self, a: u64, b: u64) -> u64 {
        a & !b
    }

    #[inline(always)]
    fn none(self) -> u64 {
        0
    }

    #[inline(always)]
    fn tally(self, tally: u64, bits: u64) -> u64 {
        tally + u64::from(bits.count_ones())
    }

    #[inline(always)]
    fn less(self, a: u64, b: u64) -> u64 {
        // Negative differences wrap, and `total` reinterprets the result as signed.
        a.wrapping_sub(b)
    }

    #[inline(always)]
    fn total(self, tally: u64) -> i64 {
        tally as i64
    }

    #[inline(always)]
    fn prefetch(self, _: &[u64], _: usize) {}
}

/// Runs an expression with the lanes of an instruction set.
macro_rules! with_lanes {
    ($isa:expr, $lanes:ident => $body:expr) => {
        match $isa.token() {
            trike_host::isa::IsaToken::Scalar(_) => {
                let $lanes = $crate::lanes::Portable;
                $body
            }
            // Population count by nibble lookup is faster only from 256 bits on.
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Sse41(_) => {
                let $lanes = $crate::lanes::Portable;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Avx2(token) => {
                let $lanes = $crate::lanes::x86::Nibbles::of_avx2(token);
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::AvxVnni(token) => {
                let $lanes = $crate::lanes::x86::Nibbles::of_avx2(token.avx2());
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::IsaToken::Avx512(token) => match $crate::lanes::x86::Avx512Popcnt::detect(token)
            {
                Some($lanes) => $body,
                // The first CPUs with AVX-512 lack VPOPCNTDQ.
                None => {
                    let $lanes = $crate::lanes::x86::Nibbles::of_avx512(token);
                    $body
                }
            },
        }
    };
}
pub(crate) use with_lanes;

//! Every operation of every instruction set compared with the portable one, and sums at their proven limits.

use trike_testkit::Rng;

use crate::kernels::Kernels;
use crate::kernels::with_kernels;
use crate::line::{CodeLine, FloatLine, IntLine};
use crate::simd::Simd;

use super::permutes::{PermuteLoop, Permutes, RunPermuting, Without};
use trike_host::CacheLine;
use trike_host::Isa;
use trike_host::Loop;
use trike_host::isa::Scalar;

/// Inputs of one call of every operation.
struct Case {
    /// Any bytes.
    any: CodeLine,
    /// 2-bit codes, none of them 3.
    codes: CodeLine,
    /// Bytes of five digits.
    digits: CodeLine,
    x: [i8; 20],
    ints: IntLine,
    floats: FloatLine,
    /// Factor of one value.
    factor: i32,
    /// Lines, or steps, that are summed.
    lines: usize,
    steps: usize,
    /// The largest code of a step.
    largest: u8,
}

/// Results of all operations on a case: lines of bytes, integers, and the bits of floats.
#[derive(Debug, Default, PartialEq)]
struct Outcome(Vec<[u8; 64]>, Vec<[i32; 16]>, Vec<[u32; 16]>);

struct Run<'a>(&'a Case);

/// The operations without byte permutes, on a CPU that has them.
struct WithoutPermutes<'a, S>(S, &'a Case);

impl<S: Simd> Loop for WithoutPermutes<'_, S> {
    type Output = Outcome;

    #[inline(always)]
    fn run(self) -> Outcome {
        PermuteLoop::run(Run(self.1), self.0, Without)
    }
}

/// Records the result of an operation.
struct Writer<S>(S);

impl<S: Simd> Writer<S> {
    #[inline(always)]
    fn bytes(&self, out: &mut Outcome, bytes: S::Bytes) {
        let mut line = CacheLine([0xEE; 64]);
        self.0.store(bytes, &mut line);
        out.0.push(line.0);
    }

    #[inline(always)]
    fn ints(&self, out: &mut Outcome, ints: S::Ints) {
        let mut line = CacheLine([-7; 16]);
        self.0.store_ints(ints, &mut line);
        out.1.push(line.0);
    }

    #[inline(always)]
    fn floats(&self, out: &mut Outcome, floats: S::Floats) {
        let mut line = CacheLine([f32::NAN; 16]);
        self.0.store_floats(floats, &mut line);
        out.2.push(line.0.map(f32::to_bits));
    }
}

impl<S: Simd> PermuteLoop<S> for Run<'_> {
    type Output = Outcome;

    #[inline(always)]
    fn run<P: Permutes<S>>(self, s: S, permutes: P) -> Outcome {
        let (to, case) = (Writer(s), self.0);
        let mut out = Outcome::default();
        let x = case.x.as_chunks::<4>().0;
        let (any, codes) = (s.load(&case.any), s.load(&case.codes));
        let unpacked = s.unpack(codes);
        let digits = permutes.digits(s, s.load(&case.digits));
        for f in 0..4 {
            to.bytes(&mut out, unpacked[f]);
        }
        for f in 0..5 {
            to.bytes(&mut out, digits[f]);
        }
        to.bytes(&mut out, s.fold(unpacked[0], unpacked[1]));
        to.bytes(&mut out, s.sub_bytes(any, codes));
        to.bytes(&mut out, s.min_bytes(any, codes));
        to.bytes(&mut out, s.and_bytes(any, codes));
        to.bytes(&mut out, s.four(x[0]));
        to.bytes(&mut out, s.splat_byte(case.largest));
        let table = std::array::from_fn(|i| case.any.0[i]);
        to.bytes(&mut out, s.lookup(&table, unpacked[2]));

        // The limits differ by instruction set; the portable one has none that matters here.
        let (mut sums, mut left) = (s.no_sums(), s.splat_int(0));
        let mut digit_sums = [s.no_acc(); 5];
        let mut fives = [s.splat_int(0); 5];
        for line in 1..=case.lines {
            sums = s.line(sums, s.fields(codes), case.x.first_chunk().expect("twenty"));
            let scaled = permutes.scaled_digits(s, s.load(&case.digits));
            for f in 0..5 {
                digit_sums[f] = s.dot(digit_sums[f], scaled[f], s.four(x[f]));
            }
            if line % S::LINES == 0 || line == case.lines {
                left = s.add_ints(left, s.finish(sums));
                sums = s.no_sums();
                let parts = permutes.finish_digits(s, digit_sums);
                for f in 0..5 {
                    fives[f] = s.add_ints(fives[f], parts[f]);
                }
                digit_sums = [s.no_acc(); 5];
            }
        }
        to.ints(&mut out, left);
        for f in 0..5 {
            to.ints(&mut out, fives[f]);
        }
        let (mut acc, mut ints) = (s.no_acc(), s.load_ints(&case.ints));
        for step in 1..=case.steps {
            acc = s.dot(acc, s.min_bytes(any, s.splat_byte(case.largest)), s.four(x[1]));
            if step % S::steps(case.largest) == 0 || step == case.steps {
                ints = s.add_ints(ints, s.to_ints(acc));
                acc = s.no_acc();
            }
        }
        to.ints(&mut out, ints);
        let mut plain = s.no_acc();
        plain = s.dot(plain, unpacked[3], s.four(x[2]));
        to.ints(&mut out, s.to_ints(plain));
        to.ints(&mut out, s.scale_add(ints, case.factor, s.load_ints(&case.ints)));
        to.floats(&mut out, s.to_floats(ints));
        let floats = s.load_floats(&case.floats);
        to.ints(&mut out, s.round(floats));
        to.floats(&mut out, s.mul(floats, s.splat(1.1)));
        to.floats(&mut out, s.add(s.load_any(&case.floats.0), s.to_floats(ints)));
        to.floats(&mut out, s.load_halves(&case.floats.0.map(half::f16::from_f32)));
        out
    }
}

fn check(case: &Case) {
    let want = Scalar::portable().run_permuting(Run(case));
    for isa in Isa::available() {
        let all = with_kernels!(isa, kernels => {
            [kernels.run_permuting(Run(case)), kernels.run(WithoutPermutes(kernels, case))]
        });
        for got in all {
            assert_eq!(got.0, want.0, "{isa}: bytes");
            assert_eq!(got.1, want.1, "{isa}: integers");
            assert_eq!(got.2, want.2, "{isa}: floats");
        }
    }
}

#[test]
fn every_operation_gives_the_same_bits() {
    let mut rng = Rng::new(1);
    for _ in 0..300 {
        let code = |rng: &mut Rng| (0..4).map(|f| (rng.below(3) as u8) << (2 * f)).sum::<u8>();
        check(&Case {
            any: CacheLine(std::array::from_fn(|_| rng.next_u64() as u8)),
            codes: CacheLine(std::array::from_fn(|_| code(&mut rng))),
            digits: CacheLine(std::array::from_fn(|_| rng.below(243) as u8)),
            x: std::array::from_fn(|_| rng.next_u64() as i8),
            ints: CacheLine(std::array::from_fn(|_| rng.next_u64() as i32)),
            floats: CacheLine(std::array::from_fn(|_| rng.normal() * 1000.0)),
            factor: 3i32.pow(rng.below(6) as u32),
            lines: rng.below(40),
            steps: rng.below(200),
            largest: [2, 8, 26, 80][rng.below(4)],
        });
    }
}

#[test]
fn the_largest_sums_are_exact() {
    for x in [-128, -127, 127] {
        for largest in [2, 8, 26, 80] {
            check(&Case {
                any: CacheLine([0xFF; 64]),
                codes: CacheLine([0b10_10_10_10; 64]),
                digits: CacheLine([242; 64]),
                x: [x; 20],
                ints: CacheLine([0; 16]),
                floats: CacheLine([0.5; 16]),
                factor: 81,
                lines: 4096,
                steps: 8192,
                largest,
            });
        }
    }
}

//! Instruction sets of the machine, as values.
//!
//! A kernel for an instruction set is a method of its token, and only detection creates tokens: the existence of a
//! token proves that the CPU has the instructions.
//!
//! ```
//! use trike_host::Isa;
//! use trike_host::isa::IsaToken;
//!
//! let lanes = match Isa::detect().token() {
//!     #[cfg(target_arch = "x86_64")]
//!     IsaToken::Avx512(_) => 16,
//!     #[cfg(target_arch = "x86_64")]
//!     IsaToken::Avx2(_) | IsaToken::AvxVnni(_) => 8,
//!     _ => 4,
//! };
//! assert!(lanes >= 4);
//! ```

use std::fmt;

use crate::error::HostError;

/// A loop that is compiled once for each instruction set.
///
/// A kernel crate calls it from a function with the target features of a token. Implementations mark `run`
/// `#[inline(always)]`, so that its code is compiled into that function, with those features.
pub trait Loop {
    /// Result of the loop.
    type Output;
    /// Runs the loop.
    fn run(self) -> Self::Output;
}

/// Portable Rust: always available, and the reference for the other sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scalar(());

impl Scalar {
    /// The token of portable Rust, which needs no detection.
    #[must_use]
    pub fn portable() -> Self {
        Self(())
    }
}

/// SSSE3 and SSE4.1: every x86-64 CPU since 2008.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sse41(());

/// AVX2 with FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// AVX-VNNI (256 bits), and everything in [`Avx2`].
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvxVnni(Avx2);

/// AVX-512 F, BW, VL and VNNI, and everything in [`Avx2`]; VBMI and BF16 if the CPU has them.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512 {
    vbmi: Option<Vbmi>,
    bf16: Option<Bf16>,
}

/// AVX-512 VBMI: byte permutes.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vbmi(());

/// AVX-512 BF16: products of pairs of bf16.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bf16(());

#[cfg(target_arch = "x86_64")]
impl Sse41 {
    fn detect() -> Option<Self> {
        (is_x86_feature_detected!("ssse3") && is_x86_feature_detected!("sse4.1")).then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl AvxVnni {
    fn detect() -> Option<Self> {
        Avx2::detect().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }

    /// The token for kernels without VNNI.
    pub fn avx2(self) -> Avx2 {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    fn detect() -> Option<Self> {
        let own = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        // Feature detection also checks that the operating system saves the wide registers.
        let vbmi = is_x86_feature_detected!("avx512vbmi").then_some(Vbmi(()));
        let bf16 = is_x86_feature_detected!("avx512bf16").then_some(Bf16(()));
        Avx2::detect().filter(|_| own).map(|_| Self { vbmi, bf16 })
    }

    /// The token for byte permutes, if available.
    pub fn vbmi(self) -> Option<Vbmi> {
        self.vbmi
    }

    /// The token for products of bf16, if available.
    pub fn bf16(self) -> Option<Bf16> {
        self.bf16
    }
}

/// The token of an [`Isa`], on which kernels dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsaToken {
    /// Portable Rust.
    Scalar(Scalar),
    /// SSSE3 and SSE4.1.
    #[cfg(target_arch = "x86_64")]
    Sse41(Sse41),
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// An instruction set that is available on this machine.
///
/// An unavailable one cannot be constructed: [`Isa::detect`], [`Isa::available`] and [`Isa::by_name`] query the CPU.
///
/// ```
/// use trike_host::Isa;
///
/// let all = Isa::available();
/// assert_eq!(all[0].name(), "scalar");
/// assert_eq!(all.last().copied(), Some(Isa::detect()));
/// assert!(Isa::by_name("mmx").is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(IsaToken);

const KNOWN: &str = "scalar, sse4.1, avx2, avx-vnni, avx512-vnni";

impl Isa {
    /// The best instruction set of this machine.
    #[must_use]
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or(Self(IsaToken::Scalar(Scalar(()))))
    }

    /// Every instruction set of this machine, from `scalar` to the best.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
        let mut all = vec![Self(IsaToken::Scalar(Scalar(())))];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Sse41::detect().map(|token| Self(IsaToken::Sse41(token))));
            all.extend(Avx2::detect().map(|token| Self(IsaToken::Avx2(token))));
            all.extend(AvxVnni::detect().map(|token| Self(IsaToken::AvxVnni(token))));
            all.extend(Avx512::detect().map(|token| Self(IsaToken::Avx512(token))));
        }
        all
    }

    /// The instruction set with the name `scalar`, `sse4.1`, `avx2`, `avx-vnni` or `avx512-vnni`; for tests, benchmarks and bug
    /// reports.
    ///
    /// # Errors
    ///
    /// [`HostError::UnknownIsa`] for another name, [`HostError::IsaUnavailable`] if the machine lacks it.
    pub fn by_name(name: &str) -> Result<Self, HostError> {
        let available = Self::available();
        if let Some(isa) = available.iter().find(|isa| isa.name() == name) {
            return Ok(*isa);
        }
        if KNOWN.split(", ").any(|known| known == name) {
            let names: Vec<&str> = available.iter().map(|isa| isa.name()).collect();
            return Err(HostError::IsaUnavailable { name: name.to_owned(), available: names.join(", ") });
        }
        Err(HostError::UnknownIsa { name: name.to_owned(), known: KNOWN })
    }

    /// The token, on which kernels dispatch.
    pub fn token(self) -> IsaToken {
        self.0
    }

    /// Whether it has the byte permutes (VBMI) that unpack 1.6-bit weights at full speed.
    pub fn has_vbmi(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaToken::Avx512(token) => token.vbmi().is_some(),
            _ => false,
        }
    }

    /// Whether it has fused multiply-add, so that `mul_add` of floats is fast.
    pub fn has_fma(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaToken::Avx2(_) | IsaToken::AvxVnni(_) | IsaToken::Avx512(_) => true,
            _ => cfg!(target_arch = "aarch64"),
        }
    }

    /// The name, as accepted by [`Isa::by_name`].
    pub fn name(self) -> &'static str {
        match self.0 {
            IsaToken::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            IsaToken::Sse41(_) => "sse4.1",
            #[cfg(target_arch = "x86_64")]
            IsaToken::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            IsaToken::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            IsaToken::Avx512(_) => "avx512-vnni",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

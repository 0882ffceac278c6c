//! The choice of lanes, made once for each operation.

/// Runs an expression with the lanes of an instruction set.
macro_rules! with_lanes {
    ($isa:expr, $lanes:ident => $body:expr) => {
        match $isa.token() {
            trike_host::isa::Token::Scalar(_) => {
                let $lanes = $crate::lanes::Portable;
                $body
            }
            // Counting by halves of bytes pays from 256 bits on.
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Sse41(_) => {
                let $lanes = $crate::lanes::Portable;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Avx2(token) => {
                let $lanes = $crate::x86::Nibbles::of_avx2(token);
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::AvxVnni(token) => {
                let $lanes = $crate::x86::Nibbles::of_avx2(token.avx2());
                $body
            }
            #[cfg(target_arch = "x86_64")]
            trike_host::isa::Token::Avx512(token) => match $crate::x86::Avx512Popcnt::detect(token) {
                Some($lanes) => $body,
                // The first processors with AVX-512 cannot count bits in it.
                None => {
                    let $lanes = $crate::x86::Nibbles::of_avx512(token);
                    $body
                }
            },
        }
    };
}
pub(crate) use with_lanes;

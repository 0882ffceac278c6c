//! The execution pipe of an instruction.

use super::parse::Instruction;

/// Groups of instructions that share an execution unit, in the order of the table's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Pipe {
    /// Matrix instructions.
    Tensor,
    /// Dot products of four bytes.
    Dot,
    /// Integer and logic operations, comparisons, selections, moves.
    Alu,
    /// Multiply-adds: f32, f16 and integer.
    Fma,
    /// Transcendental functions and conversions between integers and floats.
    Special,
    /// Loads and stores of global memory.
    Global,
    /// Loads and stores of shared memory, and shuffles.
    Shared,
    /// Barriers, and waits for asynchronous copies.
    Barrier,
    /// The uniform datapath: one operation per warp.
    Uniform,
    /// Spilled registers.
    Local,
    /// Branches, constants, special registers.
    Control,
}

impl Pipe {
    /// All pipes.
    pub(crate) const ALL: [Self; 11] = [
        Self::Tensor,
        Self::Dot,
        Self::Alu,
        Self::Fma,
        Self::Special,
        Self::Global,
        Self::Shared,
        Self::Barrier,
        Self::Uniform,
        Self::Local,
        Self::Control,
    ];

    /// Column name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Dot => "dot",
            Self::Alu => "alu",
            Self::Fma => "fma",
            Self::Special => "special",
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Barrier => "barrier",
            Self::Uniform => "uniform",
            Self::Local => "local",
            Self::Control => "control",
        }
    }

    /// The pipe of an instruction; unknown operations count as [`Pipe::Alu`], the most common one.
    pub(crate) fn of(instruction: &Instruction) -> Self {
        let name = instruction.name.as_str();
        match name {
            "HMMA" | "IMMA" | "QMMA" | "OMMA" | "BMMA" | "DMMA" | "HGMMA" | "IGMMA" | "QGMMA" | "BGMMA" => {
                Self::Tensor
            }
            "IDP" => Self::Dot,
            "IMAD" | "FFMA" | "FMUL" | "FADD" | "FFMA2" | "FMUL2" | "FADD2" | "HFMA2" | "HMUL2" | "HADD2"
            | "IMUL" => Self::Fma,
            "MUFU" | "I2F" | "F2I" | "F2F" | "FRND" | "POPC" | "FLO" | "BREV" => Self::Special,
            "LDG" | "STG" | "LDGSTS" | "LD" | "ST" | "ATOM" | "ATOMG" | "RED" | "REDG" | "CCTL" => {
                Self::Global
            }
            "LDS" | "STS" | "LDSM" | "STSM" | "ATOMS" | "SHFL" | "MATCH" | "REDUX" => Self::Shared,
            "BAR" | "DEPBAR" | "LDGDEPBAR" | "MEMBAR" | "SYNCS" | "ARRIVES" | "WARPGROUP" => Self::Barrier,
            "LDL" | "STL" => Self::Local,
            "BRA" | "BRX" | "EXIT" | "BSSY" | "BSYNC" | "BREAK" | "CALL" | "RET" | "NOP" | "YIELD"
            | "WARPSYNC" | "BMOV" | "LDC" | "S2R" | "CS2R" | "VOTE" | "ERRBAR" | "NANOSLEEP" | "KILL" => {
                Self::Control
            }
            _ if name.starts_with('U') || matches!(name, "R2UR" | "S2UR" | "LDCU" | "VOTEU" | "REDUXU") => {
                Self::Uniform
            }
            _ => Self::Alu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    #[test]
    fn pipes_are_told_apart() {
        let table = [
            ("IMMA.16832.S8.S8 R4, R8.ROW, R12.COL, R4", Pipe::Tensor),
            ("IDP.4A.S8.S8 R11, R11, R15, R10", Pipe::Dot),
            ("LOP3.LUT R11, R12, 0x3030303, RZ, 0xc0, !PT", Pipe::Alu),
            ("I2FP.F32.S32 R1, R2", Pipe::Alu),
            ("IMAD.MOV.U32 R19, RZ, RZ, RZ", Pipe::Fma),
            ("MUFU.EX2 R7, R7", Pipe::Special),
            ("LDG.E.64.CONSTANT R12, desc[UR6][R12.64]", Pipe::Global),
            ("LDS.128 R8, [R27+UR4]", Pipe::Shared),
            ("SHFL.BFLY PT, R5, R4, 0x1, 0x1f", Pipe::Shared),
            ("BAR.SYNC.DEFER_BLOCKING 0x0", Pipe::Barrier),
            ("ULDC.64 UR4, c[0x0][0x220]", Pipe::Uniform),
            ("R2UR UR4, R3", Pipe::Uniform),
            ("STL.64 [R1], R4", Pipe::Local),
            ("BSSY B0, `(.L_x_0)", Pipe::Control),
        ];
        for (text, pipe) in table {
            let parsed = parse(&format!("/*0000*/ {text} ;")).unwrap();
            assert_eq!(Pipe::of(&parsed[0]), pipe, "{text}");
        }
        assert!(Pipe::ALL.windows(2).all(|two| two[0] < two[1]));
    }
}

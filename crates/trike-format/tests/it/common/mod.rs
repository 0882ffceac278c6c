//! GGUF files assembled byte by byte, so that invalid files can be written. Shares no code with the writer of the crate.

#![allow(dead_code, reason = "each test binary uses a part of this")]

/// A GGUF file under construction: every field is written as given, valid or not.
pub(crate) struct RawGguf {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) keys: u64,
    pub(crate) metadata: Vec<u8>,
    pub(crate) count: u64,
    pub(crate) infos: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

impl Default for RawGguf {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            keys: 0,
            metadata: Vec::new(),
            count: 0,
            infos: Vec::new(),
            data: Vec::new(),
        }
    }
}

pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl RawGguf {
    /// Adds a key with a value of a type id, given as bytes.
    pub(crate) fn key(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.keys += 1;
        self.metadata.extend(string(key));
        self.metadata.extend(type_id.to_le_bytes());
        self.metadata.extend(value);
        self
    }

    /// Adds a tensor entry; `dims` has the fastest-varying axis first, as in the file.
    pub(crate) fn info(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        self.count += 1;
        self.infos.extend(string(name));
        self.infos.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| self.infos.extend(d.to_le_bytes()));
        self.infos.extend(type_id.to_le_bytes());
        self.infos.extend(offset.to_le_bytes());
        self
    }

    /// Adds a tensor entry and its data, aligned.
    pub(crate) fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, data: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend(data);
        self.info(name, dims, type_id, offset)
    }

    /// The header: all bytes before the data.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.count.to_le_bytes());
        out.extend(self.keys.to_le_bytes());
        out.extend(&self.metadata);
        out.extend(&self.infos);
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }

    /// The file, with the data padded as in llama.cpp.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = [self.header(), self.data.clone()].concat();
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }
}

/// `Q2_0` blocks for codes 0..=3 in groups, each with an f16 scale given as bits.
pub(crate) fn q2_0_blocks(codes: &[u8], group: usize, scale_bits: impl Fn(usize) -> u16) -> Vec<u8> {
    let mut out = Vec::new();
    for (block, codes) in codes.chunks(group).enumerate() {
        out.extend(scale_bits(block).to_le_bytes());
        for four in codes.chunks(4) {
            out.push(four.iter().rev().fold(0, |byte, code| byte << 2 | code));
        }
    }
    out
}

/// An independent decoder of `Q2_0`, element by element.
pub(crate) fn q2_0_values(data: &[u8], group: usize) -> Vec<f32> {
    let block_bytes = 2 + group / 4;
    (0..data.len() / block_bytes * group)
        .map(|i| {
            let block = &data[i / group * block_bytes..][..block_bytes];
            let (byte, shift) = (2 + i % group / 4, 2 * (i % 4));
            let code = block[byte] >> shift & 3;
            (f32::from(code) - 1.0) * half_to_f32(u16::from_le_bytes([block[0], block[1]]))
        })
        .collect()
}

/// IEEE half to single precision by definition.
pub(crate) fn half_to_f32(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023) / 1024.0);
    match exponent {
        0 => sign * fraction * 2f32.powi(-14),
        31 => sign * if fraction == 0.0 { f32::INFINITY } else { f32::NAN },
        _ => sign * (1.0 + fraction) * 2f32.powi(exponent - 15),
    }
}

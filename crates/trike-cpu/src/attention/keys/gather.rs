//! Contiguous copies of the selected keys and values.

use trike_host::{Cpu, Lines};

use crate::attention::{KvData, int4};
use crate::error::CpuError;
use crate::kernels::with_float_kernels;
use crate::simd::Simd;

/// Rows of a task.
const ROWS: usize = 128;
/// Rows between a prefetch and the copy: memory latency in units of row copies.
const AHEAD: usize = 12;
/// Bytes of a cache line.
const LINE: usize = 64;

/// The rows to copy for each head.
#[derive(Clone, Copy)]
pub(super) struct Selection<'a> {
    /// `[kv_heads][count]`, relative to the oldest visible position.
    pub(super) offsets: &'a [u32],
    pub(super) count: usize,
    /// The slot of the oldest visible position.
    pub(super) start: usize,
    pub(super) capacity: usize,
    pub(super) head_dim: usize,
}

impl Selection<'_> {
    fn heads(&self) -> usize {
        self.offsets.len() / self.count
    }

    /// The ring slot of an offset, without a division.
    #[inline(always)]
    fn slot(&self, offset: u32) -> usize {
        let slot = self.start + offset as usize;
        if slot < self.capacity { slot } else { slot - self.capacity }
    }

    /// Copies the rows of `data` to `room`.
    pub(super) fn gather<'r>(
        &self,
        cpu: &Cpu,
        data: KvData<'_>,
        room: &'r mut [Lines<u64>; 2],
    ) -> Result<KvData<'r>, CpuError> {
        let d = self.head_dim;
        let [elements, scales] = room;
        Ok(match data {
            KvData::F32(rows) => KvData::F32(self.copy(cpu, rows, d, elements)?),
            KvData::F16(rows) => KvData::F16(self.copy(cpu, rows, d, elements)?),
            KvData::Int8 { codes, scales: factors } => KvData::Int8 {
                codes: self.copy(cpu, codes, d, elements)?,
                scales: self.copy(cpu, factors, 1, scales)?,
            },
            KvData::Int4 { codes, scales: factors } => KvData::Int4 {
                codes: self.copy(cpu, codes, int4::bytes(d), elements)?,
                scales: self.copy(cpu, factors, 1, scales)?,
            },
        })
    }

    /// Rows of `width` elements.
    fn copy<'r, T: bytemuck::Pod + Send + Sync>(
        &self,
        cpu: &Cpu,
        from: &[T],
        width: usize,
        room: &'r mut Lines<u64>,
    ) -> Result<&'r [T], CpuError> {
        let len = self.offsets.len() * width;
        let words = (len * size_of::<T>()).div_ceil(size_of::<u64>());
        if room.len() < words {
            *room = Lines::separate(words)?;
        }
        let to = &mut bytemuck::cast_slice_mut::<u64, T>(room)[..len];
        let heads = from.chunks_exact(self.capacity * width).zip(to.chunks_exact_mut(self.count * width));
        let tasks = heads.zip(self.offsets.chunks_exact(self.count)).flat_map(|((from, to), offsets)| {
            to.chunks_mut(ROWS * width)
                .zip(offsets.chunks(ROWS))
                .map(move |(to, offsets)| (from, to, offsets))
        });
        let copy = |(from, to, offsets): (&[T], &mut [T], &[u32])| {
            with_float_kernels!(cpu.isa(), s => self.rows(s, from, width, to, offsets));
        };
        if cpu.pool().parts(self.heads() * self.count * width) > 1 {
            cpu.pool().run(tasks.collect(), copy);
        } else {
            tasks.for_each(copy);
        }
        Ok(to)
    }

    fn rows<S: Simd, T: Copy>(&self, s: S, from: &[T], width: usize, to: &mut [T], offsets: &[u32]) {
        if width == 1 {
            for (to, &offset) in to.iter_mut().zip(offsets) {
                *to = from[self.slot(offset)];
            }
            return;
        }
        for (i, (to, &offset)) in to.chunks_exact_mut(width).zip(offsets).enumerate() {
            if let Some(&later) = offsets.get(i + AHEAD) {
                let row = &from[self.slot(later) * width..][..width];
                for line in (0..size_of_val(row)).step_by(LINE) {
                    s.prefetch(&row[0], line);
                }
            }
            to.copy_from_slice(&from[self.slot(offset) * width..][..width]);
        }
    }
}

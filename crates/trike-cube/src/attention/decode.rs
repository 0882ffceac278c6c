//! Attention with few query rows: positions are split across cubes, and each cube reads a key and a value once for several heads.

use cubecl::prelude::*;

use super::codes::{Scales, code_at, scales_of};
use super::ptx;

/// Score of masked positions: finite, so that the difference of two is not NaN.
pub(super) const LOWEST: f32 = -3.0e38;

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    /// Head dimension.
    pub(super) head_dim: usize,
    /// Query heads per KV head.
    pub(super) share: usize,
    /// Query heads per cube.
    pub(super) heads: usize,
    /// Units per cube, a power of two of at least 32.
    pub(super) units: usize,
    /// Elements per vector load.
    pub(super) width: usize,
    /// Vectors of f32 per load.
    pub(super) parts: usize,
    /// True for an int8 cache: a load is `parts` words of four codes.
    pub(super) codes: bool,
    /// Positions per group and iteration, a power of two of at most [`Form::lanes`].
    pub(super) each: usize,
    /// True if positions are split across cubes, so that partial sums are written for [`combine`](super::combine).
    pub(super) split: bool,
    /// True if only the [`Chosen`] positions are attended to.
    pub(super) chosen: bool,
    /// True for PTX: synchronizes planes instead of cubes, and uses powers of two as weights.
    pub(super) ptx: bool,
}

impl Form {
    /// Maximum units per group.
    const LANES: usize = 16;
    /// Vectors of keys, and as many of values, that a unit loads before using them.
    const AHEAD: usize = 4;

    /// The form with the most positions per iteration whose scores fit `bytes` of shared memory.
    pub(super) fn with_turns_of(self, positions: usize, bytes: usize) -> Self {
        let most = (positions / self.groups()).min(Self::AHEAD / self.columns()).min(self.lanes());
        let forms = (0..=most.max(1).ilog2()).rev().map(|log| Self { each: 1 << log, ..self });
        forms.into_iter().find(|form| form.shared_bytes() <= bytes).unwrap_or(Self { each: 1, ..self })
    }

    /// Elements per vector of f32.
    pub(super) fn floats(self) -> usize {
        self.width / self.parts
    }

    /// Vector loads per head.
    fn vectors(self) -> usize {
        self.head_dim / self.width
    }

    /// Units per group; they share positions and divide the columns.
    fn lanes(self) -> usize {
        self.vectors().next_power_of_two().min(Self::LANES)
    }

    /// Vectors of a key or value per unit.
    fn columns(self) -> usize {
        self.vectors().div_ceil(self.lanes())
    }

    /// Groups of units, each with its own positions.
    fn groups(self) -> usize {
        self.units / self.lanes()
    }

    /// Units of a group that add up the dot products of the same position.
    fn adders(self) -> usize {
        self.lanes() / self.each
    }

    /// Stride of a position's partial dot products in shared memory: padded by one, so that eight positions start in different
    /// banks.
    fn stride(self) -> usize {
        self.lanes() + 1
    }

    /// Floats in shared memory for [`Form::heads`] heads: partial dot products, later the sums of half of the groups.
    fn scratch(self) -> usize {
        let dots = self.groups() * self.each * self.stride();
        dots.max(self.groups() / 2 * (self.head_dim + 1))
    }

    /// Bytes of shared memory.
    pub(super) fn shared_bytes(self) -> usize {
        let all = self.scratch() + self.groups() * self.lanes() + self.groups();
        4 * self.heads.next_power_of_two() * all
    }
}

/// `2^x` for PTX, else `e^x`.
#[cube]
pub(super) fn power(x: f32, #[comptime] ptx: bool) -> f32 {
    if comptime!(ptx) { ptx::exp2(x) } else { f32::exp(x) }
}

/// Synchronizes the units of a group after writes to shared memory.
#[cube]
fn sync_group(#[comptime] form: Form) {
    if comptime!(form.ptx) {
        sync_plane();
    } else {
        sync_cube();
    }
}

/// The query heads of a cube.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Heads {
    /// KV head.
    pub(super) kv: usize,
    /// First query head, relative to the first that shares the KV head.
    pub(super) first: usize,
    /// Number of query heads per row.
    pub(super) of_row: usize,
}

/// The heads of the cube.
#[cube]
pub(super) fn heads_of(kv_heads: u32, #[comptime] form: Form) -> Heads {
    let blocks = comptime!(form.share.div_ceil(form.heads));
    Heads {
        kv: CUBE_POS_Y as usize / blocks,
        first: CUBE_POS_Y as usize % blocks * form.heads,
        of_row: kv_heads as usize * form.share,
    }
}

/// A token in a batch of several sequences.
#[derive(CubeType, Clone, Copy)]
pub(super) struct TokenOfCube {
    /// Row of queries and outputs.
    pub(super) row: usize,
    /// First vector of its cache.
    pub(super) place: usize,
    /// Position of the token.
    pub(super) position: u32,
}

/// The cube's entry of a [table](super::TokenTable).
#[cube]
pub(super) fn token_of(table: &[u32], #[comptime] form: Form) -> TokenOfCube {
    let at = 3 * CUBE_POS_Z as usize;
    TokenOfCube {
        row: table[at] as usize,
        place: table[at + 1] as usize / form.width,
        position: table[at + 2],
    }
}

/// The selected positions of one token, as a kernel argument: `[KV head][count]`, in ascending order.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Chosen {
    positions: Box<[u32]>,
    count: u32,
}

/// The number of visible positions of a token, and the first one.
#[cube]
fn visible(chosen: &ComptimeOption<Chosen>, position: u32, window: u32) -> (u32, u32) {
    let end = position + 1;
    #[comptime]
    match chosen {
        ComptimeOption::Some(chosen) => (chosen.count, 0u32.runtime()),
        ComptimeOption::None => (min(window, end), end - min(window, end)),
    }
}

/// A part of the positions in the cache.
#[derive(CubeType, Clone, Copy)]
struct Part {
    /// First vector of the cache.
    place: usize,
    kv_head: usize,
    /// Slot of the first position, relative to `place`.
    first: u32,
    /// Number of positions.
    count: u32,
    capacity: u32,
}

/// The slot of a position, which is an offset from the first slot of the ring, or an index of the selected positions.
#[cube]
fn slot_of(chosen: &ComptimeOption<Chosen>, past: u32, part: &Part) -> u32 {
    #[comptime]
    match chosen {
        ComptimeOption::Some(chosen) => {
            chosen.positions[part.kv_head * chosen.count as usize + past as usize]
        }
        ComptimeOption::None => select(past >= part.capacity, past - part.capacity, past),
    }
}

/// Locates the positions of the unit's group in an iteration, as vector indices. Positions past the last one repeat it.
#[cube]
fn locate(
    at: &mut Array<usize>,
    chosen: &ComptimeOption<Chosen>,
    part: &Part,
    turn: u32,
    group: u32,
    #[comptime] form: Form,
) {
    #[unroll]
    for j in 0..form.each {
        let offset = turn * comptime!((form.each * form.groups()) as u32)
            + comptime!((j * form.groups()) as u32)
            + group;
        let past = part.first + min(offset, part.count - 1);
        let slot = part.kv_head * part.capacity as usize + slot_of(chosen, past, part) as usize;
        at[j] = part.place + slot * comptime!(form.vectors());
    }
}

/// The unit's `i`-th vector of a head, clamped to the last one.
#[cube]
fn column_of(lane: usize, #[comptime] i: usize, #[comptime] form: Form) -> usize {
    let mut column = lane + comptime!(i * form.lanes());
    if comptime!(form.columns() * form.lanes() != form.vectors()) {
        column = clamp_max(column, comptime!(form.vectors() - 1));
    }
    column
}

/// Loads the unit's columns of the located positions.
#[cube]
fn take<S: Numeric, W: Size>(
    from: &[Vector<S, W>],
    taken: &mut Array<Vector<S, W>>,
    at: &Array<usize>,
    lane: usize,
    #[comptime] form: Form,
) {
    #[unroll]
    for j in 0..form.each {
        #[unroll]
        for i in 0..form.columns() {
            taken[comptime!(j * form.columns() + i)] = from[at[j] + column_of(lane, i, form)];
        }
    }
}

/// Loads the scales of the located positions, if the cache has scales.
#[cube]
fn take_scales(
    from: &ComptimeOption<Scales>,
    taken: &mut Array<Vector<f32, Const<2>>>,
    at: &Array<usize>,
    #[comptime] form: Form,
) {
    if comptime!(form.codes) {
        #[unroll]
        for j in 0..form.each {
            taken[j] = scales_of(from, at[j] / comptime!(form.vectors()));
        }
    }
}

/// Part `p` of a loaded vector in f32; for an int8 cache, its codes without their scale.
#[cube]
fn floats_of<E: Float, S: Numeric, N: Size, W: Size>(
    taken: Vector<S, W>,
    #[comptime] p: usize,
    #[comptime] form: Form,
) -> Vector<f32, N> {
    let mut floats = Vector::<f32, N>::new(0.0f32);
    if comptime!(form.codes) {
        let word = u32::reinterpret(taken.extract(p));
        #[unroll]
        for n in 0..form.floats() {
            floats.insert(n, code_at(word, comptime!(n as u32), form.ptx));
        }
    } else {
        floats = Vector::<f32, N>::cast_from(Vector::<E, N>::reinterpret(taken));
    }
    floats
}

/// Cube `(part, KV head and block of its query heads, row)` computes attention of `heads` query heads over its part of the
/// row's visible positions. The last parts are empty when there are fewer positions than parts.
///
/// A group of units takes every `groups`-th position of the part, several per iteration, with the columns of keys and values
/// divided among its units, and has its own maximum and sums (online softmax: Milakov and Gimelshein, 2018); at the end the groups
/// are combined. In an iteration the units multiply their columns of the keys, add up the products of the group through shared
/// memory, and sum their columns of the values. The keys of the next iteration are loaded while the current ones are multiplied,
/// and the next values while the current ones are summed.
///
/// Vectors of `N` elements of type `E` are loaded as `W` numbers of type `S`. Two f16 are loaded as one word: a compiler that sees
/// f16 would separate them into registers on arrival, and so wait for the load. For an int8 cache, `W` words are as many vectors of
/// four elements. A key's scale multiplies its scores and a value's scale its weights, so that the sums are over codes; the scales
/// of the next iteration are loaded from the end of the current one.
///
/// The loops depend only on the row's position, so every unit reaches every barrier. The kernel, not the host, computes the extent
/// of a part, because the arguments of a recorded launch are fixed: the grid is sized for
/// [`AttentionProblem::horizon`](super::AttentionProblem::horizon), and the position is read from a buffer.
#[cube]
pub(super) fn attend<E: Float, S: Numeric, N: Size, W: Size, M: Size>(
    q: &[Vector<f32, N>],
    k: &[Vector<S, W>],
    v: &[Vector<S, W>],
    scales: &ComptimeOption<Scales>,
    out: &mut [f32],
    row: usize,
    position: u32,
    place: usize,
    kv_heads: u32,
    capacity: u32,
    window: u32,
    scale: f32,
    chosen: &ComptimeOption<Chosen>,
    #[comptime] form: Form,
) {
    let unit = UNIT_POS as usize;
    let (lane, group) = (unit % comptime!(form.lanes()), unit / comptime!(form.lanes()));
    let vectors = comptime!(form.vectors());
    let columns = comptime!(form.columns());
    let parts = form.parts;
    let floats = comptime!(form.floats());
    let each = form.each;
    let heads = form.heads;
    let of = heads_of(kv_heads, form);
    let (kv_head, first_head, query_heads) = (of.kv, of.first, of.of_row);

    let (seen, start) = visible(chosen, position, window);
    let groups = comptime!(form.groups() as u32);
    let per = seen.div_ceil(CUBE_COUNT_X).div_ceil(groups) * groups;
    let before = min(CUBE_POS_X * per, seen);
    let part =
        Part { place, kv_head, first: (start + before) % capacity, count: min(per, seen - before), capacity };

    let mut scratch = Shared::<[Vector<f32, M>]>::new_slice(comptime!(form.scratch()));
    let mut added = Shared::<[Vector<f32, M>]>::new_slice(comptime!(form.groups() * form.lanes()));
    let mut maxima = Shared::<[Vector<f32, M>]>::new_slice(comptime!(form.groups()));

    let mut at = Array::<usize>::new(each);
    let mut keys = Array::<Vector<S, W>>::new(comptime!(form.each * form.columns()));
    let mut values = Array::<Vector<S, W>>::new(comptime!(form.each * form.columns()));
    let mut pairs = Array::<Vector<f32, Const<2>>>::new(each);
    if part.count > 0 {
        locate(&mut at, chosen, &part, 0u32, group as u32, form);
        take::<S, W>(k, &mut keys, &at, lane, form);
        take::<S, W>(v, &mut values, &at, lane, form);
        take_scales(scales, &mut pairs, &at, form);
    }

    // Each column is `parts` vectors.
    let mut queries = Array::<Vector<f32, N>>::new(comptime!(form.heads * form.columns() * form.parts));
    let mut sums = Array::<Vector<f32, N>>::new(comptime!(form.heads * form.columns() * form.parts));
    let mut totals = Array::<f32>::new(heads);
    let mut largest = Array::<f32>::new(heads);
    #[unroll]
    for h in 0..heads {
        // Heads past the last one repeat it and are not stored.
        let head = kv_head * form.share + clamp_max(first_head + h, comptime!(form.share - 1));
        #[unroll]
        for i in 0..columns {
            let from = ((row * query_heads + head) * vectors + column_of(lane, i, form)) * parts;
            // Columns past the last one add nothing.
            let used = lane + comptime!(i * form.lanes()) < vectors;
            #[unroll]
            for p in 0..parts {
                let at = comptime!((h * columns + i) * parts + p);
                queries[at] = q[from + p] * Vector::new(select(used, scale, 0.0f32));
                sums[at] = Vector::new(0.0f32);
            }
        }
        totals[h] = 0.0;
        largest[h] = LOWEST;
    }

    let mut scores = Array::<f32>::new(comptime!(form.each * form.heads));
    let turns = part.count.div_ceil(comptime!((form.each * form.groups()) as u32));
    for turn in 0..turns {
        #[unroll]
        for j in 0..each {
            let mut dots = Vector::<f32, M>::new(0.0f32);
            #[unroll]
            for h in 0..heads {
                let mut dot = 0.0f32;
                #[unroll]
                for i in 0..columns {
                    #[unroll]
                    for p in 0..parts {
                        let key = floats_of::<E, S, N, W>(keys[comptime!(j * columns + i)], p, form);
                        let query = queries[comptime!((h * columns + i) * parts + p)];
                        #[unroll]
                        for n in 0..floats {
                            dot += key.extract(n) * query.extract(n);
                        }
                    }
                }
                dots.insert(h, dot);
            }
            scratch[(group * each + j) * comptime!(form.stride()) + lane] = dots;
        }
        if turn + 1 < turns {
            locate(&mut at, chosen, &part, turn + 1, group as u32, form);
            take::<S, W>(k, &mut keys, &at, lane, form);
        }
        sync_group(form);
        // A unit adds up `each` of the products of one position.
        let mut sum = Vector::<f32, M>::new(0.0f32);
        #[unroll]
        for l in 0..each {
            sum += scratch[(group * each + lane % each) * comptime!(form.stride()) + lane / each * each + l];
        }
        added[group * comptime!(form.lanes()) + lane] = sum;
        sync_group(form);
        // From here on all units of a group compute the same weights.
        #[unroll]
        for j in 0..each {
            let mut score = added[group * comptime!(form.lanes()) + j];
            #[unroll]
            for l in 1..comptime!(form.adders()) {
                score += added[group * comptime!(form.lanes()) + comptime!(l * form.each + j)];
            }
            let offset = turn * comptime!((form.each * form.groups()) as u32)
                + comptime!((j * form.groups()) as u32)
                + group as u32;
            #[unroll]
            for h in 0..heads {
                let mut of_head = score.extract(h);
                if comptime!(form.codes) {
                    of_head *= pairs[j].extract(0usize);
                }
                scores[comptime!(j * heads + h)] = select(offset < part.count, of_head, LOWEST);
            }
        }
        #[unroll]
        for h in 0..heads {
            let mut most = largest[h];
            #[unroll]
            for j in 0..each {
                most = max(most, scores[comptime!(j * heads + h)]);
            }
            // A group without a position so far gets zero weights.
            let reference = select(most == LOWEST, 0.0f32, most);
            let kept = power(largest[h] - most, form.ptx);
            largest[h] = most;
            let mut total = totals[h] * kept;
            #[unroll]
            for j in 0..each {
                let mut weight = power(scores[comptime!(j * heads + h)] - reference, form.ptx);
                total += weight;
                if comptime!(form.codes) {
                    weight *= pairs[j].extract(1usize);
                }
                scores[comptime!(j * heads + h)] = weight;
            }
            totals[h] = total;
            #[unroll]
            for i in 0..comptime!(columns * parts) {
                sums[comptime!(h * columns * parts + i)] *= Vector::new(kept);
            }
        }
        #[unroll]
        for j in 0..each {
            #[unroll]
            for i in 0..columns {
                #[unroll]
                for p in 0..parts {
                    let value = floats_of::<E, S, N, W>(values[comptime!(j * columns + i)], p, form);
                    #[unroll]
                    for h in 0..heads {
                        let weight = scores[comptime!(j * heads + h)];
                        sums[comptime!((h * columns + i) * parts + p)] += value * Vector::new(weight);
                    }
                }
            }
        }
        if turn + 1 < turns {
            take::<S, W>(v, &mut values, &at, lane, form);
            take_scales(scales, &mut pairs, &at, form);
        }
    }

    // Sums of all groups, relative to the largest score of all.
    if lane == 0 {
        let mut own = Vector::<f32, M>::new(LOWEST);
        #[unroll]
        for h in 0..heads {
            own.insert(h, largest[h]);
        }
        maxima[group] = own;
    }
    sync_cube();
    #[unroll]
    for h in 0..heads {
        let mut most = LOWEST.runtime();
        for g in 0..comptime!(form.groups()) {
            most = max(most, maxima[g].extract(h));
        }
        let kept = power(largest[h] - most, form.ptx);
        largest[h] = most;
        totals[h] *= kept;
        #[unroll]
        for i in 0..comptime!(columns * parts) {
            sums[comptime!(h * columns * parts + i)] *= Vector::new(kept);
        }
    }
    let size = comptime!(form.head_dim + 1);
    #[unroll]
    for round in 0..comptime!(form.groups().ilog2() as usize) {
        let half = comptime!(form.groups() >> (round + 1));
        if group >= half && group < comptime!(2 * half) {
            let place = (group - half) * size;
            #[unroll]
            for i in 0..columns {
                #[unroll]
                for n in 0..form.width {
                    let mut all = Vector::<f32, M>::new(0.0f32);
                    #[unroll]
                    for h in 0..heads {
                        let sum = sums[comptime!((h * columns + i) * parts + n / floats)];
                        all.insert(h, sum.extract(comptime!(n % floats)));
                    }
                    // Columns past the last one duplicate it.
                    scratch[place + n * vectors + column_of(lane, i, form)] = all;
                }
            }
            if lane == 0 {
                let mut all = Vector::<f32, M>::new(0.0f32);
                #[unroll]
                for h in 0..heads {
                    all.insert(h, totals[h]);
                }
                scratch[place + form.head_dim] = all;
            }
        }
        sync_cube();
        if group < half {
            let place = group * size;
            #[unroll]
            for i in 0..columns {
                #[unroll]
                for n in 0..form.width {
                    let all = scratch[place + n * vectors + column_of(lane, i, form)];
                    #[unroll]
                    for h in 0..heads {
                        let at = comptime!((h * columns + i) * parts + n / floats);
                        let mut sum = sums[at];
                        let element = comptime!(n % floats);
                        sum.insert(element, sum.extract(element) + all.extract(h));
                        sums[at] = sum;
                    }
                }
            }
            let all = scratch[place + form.head_dim];
            #[unroll]
            for h in 0..heads {
                totals[h] += all.extract(h);
            }
        }
        sync_cube();
    }

    if group == 0 {
        #[unroll]
        for h in 0..heads {
            if first_head + h < form.share {
                let head = kv_head * form.share + first_head + h;
                let part =
                    (CUBE_POS_Z as usize * query_heads + head) * CUBE_COUNT_X as usize + CUBE_POS_X as usize;
                #[unroll]
                for i in 0..columns {
                    let column = lane + comptime!(i * form.lanes());
                    if column < vectors {
                        #[unroll]
                        for n in 0..form.width {
                            let sum = sums[comptime!((h * columns + i) * parts + n / floats)];
                            let sum = sum.extract(comptime!(n % floats));
                            let d = column * form.width + n;
                            if comptime!(form.split) {
                                out[part * comptime!(form.head_dim + 2) + d] = sum;
                            } else {
                                out[(row * query_heads + head) * form.head_dim + d] = sum / totals[h];
                            }
                        }
                    }
                }
                if comptime!(form.split) && lane == 0 {
                    out[part * comptime!(form.head_dim + 2) + form.head_dim] = largest[h];
                    out[part * comptime!(form.head_dim + 2) + comptime!(form.head_dim + 1)] = totals[h];
                }
            }
        }
    }
}

/// Attention of the tokens from `first_row` on, all with the same cache.
#[cube(launch_unchecked)]
pub(super) fn decode<E: Float, S: Numeric, N: Size, W: Size, M: Size>(
    q: &[Vector<f32, N>],
    k: &[Vector<S, W>],
    v: &[Vector<S, W>],
    scales: ComptimeOption<Scales>,
    positions: &[u32],
    out: &mut [f32],
    first_row: u32,
    kv_heads: u32,
    capacity: u32,
    window: u32,
    scale: f32,
    chosen: ComptimeOption<Chosen>,
    #[comptime] form: Form,
) {
    let row = first_row as usize + CUBE_POS_Z as usize;
    let position = positions[row];
    attend::<E, S, N, W, M>(
        q, k, v, &scales, out, row, position, 0usize, kv_heads, capacity, window, scale, &chosen, form,
    );
}

/// Attention of the tokens of a [table](super::TokenTable), with caches in one allocation.
#[cube(launch_unchecked)]
pub(super) fn decode_several<E: Float, S: Numeric, N: Size, W: Size, M: Size>(
    q: &[Vector<f32, N>],
    k: &[Vector<S, W>],
    v: &[Vector<S, W>],
    scales: ComptimeOption<Scales>,
    table: &[u32],
    out: &mut [f32],
    kv_heads: u32,
    capacity: u32,
    window: u32,
    scale: f32,
    #[comptime] form: Form,
) {
    let token = token_of(table, form);
    attend::<E, S, N, W, M>(
        q,
        k,
        v,
        &scales,
        out,
        token.row,
        token.position,
        token.place,
        kv_heads,
        capacity,
        window,
        scale,
        &ComptimeOption::new_None(),
        form,
    );
}

// Emulates a CUDA device in a single thread: runs one launch of one kernel, whose threads are coroutines with their
// own stacks.
//
//     kernel IN OUT
//
// IN contains little-endian words (number of buffers, number of arguments, bytes of the by-value argument, cubes x y
// z, threads x y z, bytes of shared memory), the size of each buffer, the buffer index of each argument, the by-value
// argument, and the buffers. OUT receives the buffers.
//
// The launch is run three times, with the threads in ascending, descending and random order, and must produce
// identical results: this detects missing barriers. Buffers and shared memory lie between poisoned regions, shared
// memory is initialized with garbage, and barriers, shuffles and matrix instructions must be reached by all threads of
// their cube or warp from the same line. The data of asynchronous copies appears at the wait; until then it is
// garbage.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <vector>

#include "runtime.h"

#ifndef __x86_64__
#error "switching stacks requires x86-64"
#endif

extern "C" void emu_entry(char **buffers, const void *info);
extern const int emu_arguments;
extern const unsigned emu_info_bytes;

emu_thread *emu_current;
emu_dim blockIdx, gridDim, blockDim;
char *emu_shared;

enum { READY, WAITS_FOR_WARP, WAITS_FOR_CUBE, DONE };

// Inputs and results of the lanes of a warp for an instruction that they execute together.
struct warp {
    int arrived = 0, line = 0;
    unsigned a[32][4], b[32][2], c[32][4], value[32], result[32];
    int from[32];
    float f[32][4];
    void *brought[32];
};

// Asynchronous copies of a thread: pending groups, and the open group.
struct copy { char *to; const char *from; };
struct copies { std::deque<std::vector<copy>> groups; std::vector<copy> open; };

static const size_t STACK = 2u << 20, GUARD = 1u << 20;
static std::vector<emu_thread> threads;
static std::vector<char *> stacks;
static std::vector<warp> warps;
static std::vector<copies> started;
static size_t shared_bytes;
static int total, waiting, barrier_line, done;
static void *main_stack;
static char **arguments;
static const void *info_argument;

[[noreturn]] static void fail(const char *what) {
    int thread = emu_current ? emu_current->index : -1;
    fprintf(stderr, "%s (cube %u %u %u, thread %d)\n", what, blockIdx.x, blockIdx.y, blockIdx.z, thread);
    exit(3);
}

void emu_fail(const char *what) { fail(what); }

// Saves the callee-saved registers, switches stacks, and returns where the other stack was suspended.
extern "C" void emu_switch(void **save, void *load);
asm(R"(
.globl emu_switch
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

static void yield() { emu_switch(&emu_current->stack, main_stack); }

static void body() {
    emu_entry(arguments, info_argument);
    copies &mine = started[emu_current->index];
    for (auto &group : mine.groups)
        if (!group.empty()) fail("a thread ended without waiting for its copies");
    if (!mine.open.empty()) fail("a thread ended without waiting for its copies");
    emu_current->state = DONE;
    done++;
    if (waiting) fail("a thread ended while others wait at a barrier");
    yield();
    abort();
}

void emu_barrier(int line) {
    if (done) fail("a barrier after the end of a thread");
    if (waiting == 0) barrier_line = line;
    else if (barrier_line != line) fail("threads at different barriers");
    if (++waiting == total) {
        waiting = 0;
        for (auto &thread : threads) thread.state = READY;
        return;
    }
    emu_current->state = WAITS_FOR_CUBE;
    yield();
}

// The last lane to arrive executes for all.
template <class F> static void together(int line, F execute) {
    int first = emu_current->index / 32 * 32;
    warp &w = warps[first / 32];
    if (w.arrived == 0) w.line = line;
    else if (w.line != line) fail("lanes of a warp at different instructions");
    if (++w.arrived == 32) {
        w.arrived = 0;
        execute(w);
        for (int lane = 0; lane < 32; lane++) threads[first + lane].state = READY;
        return;
    }
    emu_current->state = WAITS_FOR_WARP;
    yield();
}

void emu_warp(int line, void *mine, void (*execute)(void **lanes)) {
    warps[emu_current->index / 32].brought[emu_current->index % 32] = mine;
    together(line, [=](warp &w) { execute(w.brought); });
}

// PTX ISA, "cp.async": the data arrives at any time between the instruction and the wait for its group, and only then
// may the thread read it; other threads need a barrier after that. Until the wait the destination contains garbage,
// which exposes early reads and late reads of the old data.
unsigned emu_shared_place(const void *pointer) {
    const char *at = (const char *)pointer;
    if (at < emu_shared || at >= emu_shared + shared_bytes) fail("address outside of shared memory");
    return (unsigned)(at - emu_shared);
}

void emu_copy_async(int, unsigned to, const void *from) {
    if (to % 16 || (uintptr_t)from % 16) fail("misaligned asynchronous copy");
    memset(emu_shared + to, 0xa5, 16);
    started[emu_current->index].open.push_back({emu_shared + to, (const char *)from});
}

void emu_commit_group(int) {
    copies &mine = started[emu_current->index];
    mine.groups.push_back(std::move(mine.open));
    mine.open.clear();
}

void emu_wait_group(int, unsigned pending) {
    copies &mine = started[emu_current->index];
    while (mine.groups.size() > pending) {
        for (copy &one : mine.groups.front()) memcpy(one.to, one.from, 16);
        mine.groups.pop_front();
    }
}

// PTX ISA, "Matrix fragments for mma.m16n8k32" with bytes. In lane 4 g + t, element i of A is in row g (+ 8 for i in
// 4..8 and 12..16) and column 4 t + i % 4 (+ 16 from 8 on), of B in row 4 t + i % 4 (+ 16 from 4 on) and column g, of
// C and D in row g (+ 8 from 2 on) and column 2 t + i % 2.
void emu_mma_s8(int line, unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned a0, unsigned a1, unsigned a2,
                unsigned a3, unsigned b0, unsigned b1, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
    warp &mine = warps[emu_current->index / 32];
    int lane = emu_current->index % 32;
    unsigned a[4] = {a0, a1, a2, a3}, c[4] = {c0, c1, c2, c3};
    memcpy(mine.a[lane], a, sizeof a);
    memcpy(mine.c[lane], c, sizeof c);
    mine.b[lane][0] = b0;
    mine.b[lane][1] = b1;
    together(line, [](warp &w) {
        static signed char A[16][32], B[32][8];
        for (int l = 0; l < 32; l++) {
            int g = l / 4, t = l % 4;
            for (int i = 0; i < 16; i++) {
                int row = i / 4 % 2 ? g + 8 : g, column = t * 4 + i % 4 + (i >= 8 ? 16 : 0);
                A[row][column] = (signed char)(w.a[l][i / 4] >> 8 * (i % 4));
            }
            for (int i = 0; i < 8; i++) B[t * 4 + i % 4 + (i >= 4 ? 16 : 0)][g] = (signed char)(w.b[l][i / 4] >> 8 * (i % 4));
        }
        for (int l = 0; l < 32; l++) {
            int g = l / 4, t = l % 4;
            for (int i = 0; i < 4; i++) {
                int row = i >= 2 ? g + 8 : g, column = 2 * t + i % 2;
                int64_t sum = (int32_t)w.c[l][i];
                for (int k = 0; k < 32; k++) sum += (int)A[row][k] * (int)B[k][column];
                if (sum != (int32_t)sum) fail("a sum of mma overflows 32 bits");
                w.c[l][i] = (uint32_t)(int32_t)sum;
            }
        }
    });
    d0 = mine.c[lane][0];
    d1 = mine.c[lane][1];
    d2 = mine.c[lane][2];
    d3 = mine.c[lane][3];
}

static float half_of(unsigned word, int which) {
    unsigned short bits = which ? word >> 16 : word & 0xffff;
    __half value;
    memcpy(&value, &bits, 2);
    return (float)value;
}

// A matrix instruction with f32 sums, m16n8 with eight words of a row: a row of four words is distributed over the lanes of a
// group; the words of A are the upper left, lower left, upper right and lower right quadrants. `dot(x, y)` multiplies the
// elements of two words and adds them to `sum`.
template <void dot(float &sum, unsigned x, unsigned y)>
static void multiply_f32(int line, const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], float *const (&d)[4]) {
    warp &mine = warps[emu_current->index / 32];
    int lane = emu_current->index % 32;
    memcpy(mine.a[lane], a, sizeof a);
    memcpy(mine.b[lane], b, sizeof b);
    memcpy(mine.f[lane], c, sizeof c);
    together(line, [](warp &w) {
        for (int l = 0; l < 32; l++) {
            int g = l / 4, t = l % 4;
            for (int i = 0; i < 4; i++) {
                int row = g + 8 * (i / 2), column = 2 * t + i % 2;
                float sum = 0;
                for (int k = 0; k < 8; k++) dot(sum, w.a[row % 8 * 4 + k % 4][row / 8 + 2 * (k / 4)], w.b[column * 4 + k % 4][k / 4]);
                w.f[l][i] += sum;
            }
        }
    });
    for (int i = 0; i < 4; i++) *d[i] = mine.f[lane][i];
}

static void dot_f16(float &sum, unsigned x, unsigned y) {
    for (int i = 0; i < 2; i++) sum += half_of(x, i) * half_of(y, i);
}

// PTX ISA, "Matrix fragments for mma.m16n8k16" with FP16: two elements per word.
void emu_mma_f16(int line, float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                 unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {
    multiply_f32<dot_f16>(line, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}, {&d0, &d1, &d2, &d3});
}

// The first 11 bits of a number, which is what the instruction uses.
static float tf32_of(unsigned word) {
    float value;
    word &= ~0x1fffu;
    memcpy(&value, &word, 4);
    return value;
}

static void dot_tf32(float &sum, unsigned x, unsigned y) { sum += tf32_of(x) * tf32_of(y); }

// PTX ISA, "Matrix fragments for mma.m16n8k8" with .tf32: element i of A is row g + 8 (i % 2), column t + 4 (i / 2); of B, row
// t + 4 i, column g.
void emu_mma_tf32(int line, float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                  unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {
    multiply_f32<dot_tf32>(line, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}, {&d0, &d1, &d2, &d3});
}

// PTX ISA, "ldmatrix": lane 8 i + r names row r of matrix i, 16 bytes; lane 4 g + t gets elements 2 t and 2 t + 1 of row g of
// each matrix, or of column g if transposed.
static void load_matrices(int line, unsigned row, bool transposed, unsigned *words[4]) {
    warp &mine = warps[emu_current->index / 32];
    int lane = emu_current->index % 32;
    if (row % 16) fail("misaligned row of a matrix");
    if (row + 16 > shared_bytes) fail("row of a matrix outside of shared memory");
    mine.value[lane] = row;
    together(line, [=](warp &w) {
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++) {
                unsigned short two[2];
                for (int j = 0; j < 2; j++) {
                    int g = l / 4, c = l % 4 * 2 + j;
                    unsigned from = w.value[8 * i + (transposed ? c : g)] + 2 * (transposed ? g : c);
                    memcpy(&two[j], emu_shared + from, 2);
                }
                w.a[l][i] = two[0] | (unsigned)two[1] << 16;
            }
    });
    for (int i = 0; i < 4; i++) *words[i] = mine.a[lane][i];
}

void emu_load_matrices(int line, unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned row) {
    unsigned *words[4] = {&d0, &d1, &d2, &d3};
    load_matrices(line, row, false, words);
}

void emu_load_transposed(int line, unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned row) {
    unsigned *words[4] = {&d0, &d1, &d2, &d3};
    load_matrices(line, row, true, words);
}

// PTX ISA, "ex2": the relative error is up to 2^-22, and numbers below 2^-126 become zero. The error here has this size, and a
// sign that depends on the argument, so that no kernel passes because the host is more exact.
void emu_exp2(int, float &power, float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    float error = x == 0 ? 0 : (bits * 2654435761u >> 31 ? 1 : -1) * 0x1p-22f;
    power = __builtin_exp2f(x) * (1 + error);
    if (power < 0x1p-126f) power = 0;
}

// PTX ISA, "cvt" to f16x2: the first operand is the high half.
void emu_pack(int, unsigned &word, float high, float low) {
    __half halves[2] = {(__half)low, (__half)high};
    memcpy(&word, halves, 4);
}

// PTX ISA, "prmt" without a mode: nibble n of the selector names the byte of {b, a} that is byte n of the result. Its highest bit,
// which would replicate a sign, is not used.
void emu_permute(int, unsigned &result, unsigned a, unsigned b, unsigned selector) {
    unsigned long long bytes = (unsigned long long)b << 32 | a;
    result = 0;
    for (int n = 0; n < 4; n++) result |= (unsigned)(bytes >> 8 * (selector >> 4 * n & 7) & 0xFF) << 8 * n;
}

unsigned emu_shuffle(int line, unsigned value, int kind, unsigned argument) {
    warp &mine = warps[emu_current->index / 32];
    int lane = emu_current->index % 32, from = lane;
    if (kind == EMU_XOR) from = lane ^ (int)argument;
    if (kind == EMU_INDEX) from = (int)(argument % 32);
    if (kind == EMU_UP) from = lane - (int)argument;
    if (kind == EMU_DOWN) from = lane + (int)argument;
    mine.value[lane] = value;
    mine.from[lane] = from < 0 || from > 31 ? lane : from;
    together(line, [](warp &w) {
        for (int l = 0; l < 32; l++) w.result[l] = w.value[w.from[l]];
    });
    return mine.result[lane];
}

unsigned emu_ballot(int line, bool predicate) {
    warp &mine = warps[emu_current->index / 32];
    int lane = emu_current->index % 32;
    mine.value[lane] = predicate;
    together(line, [](warp &w) {
        unsigned mask = 0;
        for (int l = 0; l < 32; l++) mask |= w.value[l] << l;
        for (auto &result : w.result) result = mask;
    });
    return mine.result[lane];
}

static char *guarded(size_t size) {
    size_t end = GUARD + size, length = GUARD + (size + 255) / 256 * 256 + GUARD;
    char *whole = (char *)aligned_alloc(256, length);
    if (!whole) fail("no memory");
    memset(whole, 0x7b, length);
    __asan_poison_memory_region(whole, GUARD);
    __asan_poison_memory_region(whole + end, length - end);
    return whole + GUARD;
}

static void resume(emu_thread &thread) {
    emu_current = &thread;
    emu_switch(&main_stack, thread.stack);
}

static void run_cube(int order) {
    for (int i = 0; i < total; i++) {
        unsigned x = blockDim.x, y = blockDim.y;
        void **top = (void **)(stacks[i] + STACK - 64);
        *--top = nullptr;
        *--top = (void *)body;
        for (int k = 0; k < 6; k++) *--top = nullptr;
        threads[i] = {top, {i % x, i / x % y, i / (x * y)}, i, READY};
    }
    done = waiting = 0;
    for (auto &w : warps) w.arrived = 0;
    started.assign(total, {});
    int count = (int)warps.size();
    while (done < total) {
        bool any = false;
        if (order == 2) {
            int start = rand() % total;
            for (int k = 0; k < total; k++) {
                emu_thread &thread = threads[(start + k) % total];
                if (thread.state != READY) continue;
                any = true;
                resume(thread);
                if (rand() % 8 == 0) break;
            }
        } else {
            for (int k = 0; k < count; k++) {
                int first = 32 * (order ? count - 1 - k : k);
                // A warp continues until all of its lanes wait for others.
                for (bool more = true; more;) {
                    more = false;
                    for (int lane = 0; lane < 32; lane++) {
                        int i = first + (order ? 31 - lane : lane);
                        if (i >= total || threads[i].state != READY) continue;
                        more = any = true;
                        resume(threads[i]);
                    }
                }
            }
        }
        if (!any) fail("deadlock: lanes of a warp are missing at an instruction");
    }
    emu_current = nullptr;
}

int main(int count, char **names) {
    FILE *in = count == 3 ? fopen(names[1], "rb") : nullptr;
    if (!in) fail("expected a readable input and the name of an output");
    auto bytes = [&](void *to, size_t size) {
        if (size && fread(to, 1, size, in) != size) fail("the input is too short");
    };
    auto word = [&] {
        uint32_t value;
        bytes(&value, 4);
        return value;
    };
    unsigned buffers = word(), given = word(), info_bytes = word();
    gridDim = {word(), word(), word()};
    blockDim = {word(), word(), word()};
    unsigned shared = word();
    if ((int)given != emu_arguments) fail("the number of buffers differs from the kernel's");
    if (info_bytes < emu_info_bytes) fail("the by-value argument is too short");
    std::vector<unsigned> sizes(buffers), of(given);
    for (auto &size : sizes) size = word();
    for (auto &buffer : of) buffer = word();
    std::vector<uint64_t> info(info_bytes / 8 + 32);
    bytes(info.data(), info_bytes);
    std::vector<std::vector<char>> before(buffers), first(buffers);
    std::vector<char *> at(buffers), passed(given);
    for (unsigned i = 0; i < buffers; i++) {
        before[i].resize(sizes[i]);
        bytes(before[i].data(), sizes[i]);
        at[i] = guarded(sizes[i]);
    }
    fclose(in);
    for (unsigned i = 0; i < given; i++) passed[i] = at[of[i]];
    arguments = passed.data();
    info_argument = info.data();
    total = (int)(blockDim.x * blockDim.y * blockDim.z);
    threads.resize(total);
    warps.resize((total + 31) / 32);
    for (int i = 0; i < total; i++) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        char *stack = (char *)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (stack == MAP_FAILED) fail("no memory for stacks");
        mprotect(stack, 4096, PROT_NONE);
        stacks.push_back(stack);
    }
    emu_shared = guarded(shared);
    shared_bytes = shared;
    unsigned cubes = gridDim.x * gridDim.y * gridDim.z;
    for (int order = 0; order < 3; order++) {
        for (unsigned i = 0; i < buffers; i++) memcpy(at[i], before[i].data(), sizes[i]);
        for (unsigned k = 0; k < cubes; k++) {
            unsigned cube = order == 1 ? cubes - 1 - k : k;
            blockIdx = {cube % gridDim.x, cube / gridDim.x % gridDim.y, cube / (gridDim.x * gridDim.y)};
            memset(emu_shared, order == 1 ? 0x5a : 0xff, shared);
            run_cube(order);
        }
        for (unsigned i = 0; i < buffers; i++) {
            if (order == 0) first[i].assign(at[i], at[i] + sizes[i]);
            else if (memcmp(first[i].data(), at[i], sizes[i])) fail("the result depends on the order of the threads");
        }
    }
    FILE *out = fopen(names[2], "wb");
    if (!out) fail("cannot write the output");
    for (auto &buffer : first) fwrite(buffer.data(), 1, buffer.size(), out);
    return fclose(out) ? 9 : 0;
}

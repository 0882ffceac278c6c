// Definitions for compiling generated CUDA C++ with g++ and running it on the host: see runtime.cpp.
typedef __SIZE_TYPE__ size_t;
typedef _Float16 __half;

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
#define __align__(bytes)

struct emu_dim { unsigned x, y, z; };

static const int warpSize = 32;

// A thread of a cube: saved stack pointer, position in the cube, and wait state.
struct emu_thread {
    void *stack;
    emu_dim id;
    int index, state;
};

extern emu_thread *emu_current;
extern emu_dim blockIdx, gridDim, blockDim;
extern char *emu_shared;
#define threadIdx (emu_current->id)

// Collective operations take the line that they are called from: all threads must call from the same line.
void emu_barrier(int line);
void emu_mma_s8(int line, unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned a0, unsigned a1, unsigned a2,
                unsigned a3, unsigned b0, unsigned b1, unsigned c0, unsigned c1, unsigned c2, unsigned c3);
void emu_mma_f16(int line, float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                 unsigned b0, unsigned b1, float c0, float c1, float c2, float c3);
void emu_mma_tf32(int line, float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                  unsigned b0, unsigned b1, float c0, float c1, float c2, float c3);
// Loads four 8 x 8 matrices of 16-bit elements (`ldmatrix`), as they lie or transposed, from the rows that the lanes name.
void emu_load_matrices(int line, unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned row);
void emu_load_transposed(int line, unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned row);
void emu_exp2(int line, float &power, float x);
void emu_pack(int line, unsigned &word, float high, float low);
void emu_permute(int line, unsigned &result, unsigned a, unsigned b, unsigned selector);
// Copies 16 bytes to shared memory (`cp.async`); commits a group; waits for all but `pending` groups.
unsigned emu_shared_place(const void *pointer);
void emu_copy_async(int line, unsigned to, const void *from);
void emu_commit_group(int line);
void emu_wait_group(int line, unsigned pending);
// The last lane of a warp to arrive executes with the inputs of all lanes.
void emu_warp(int line, void *mine, void (*execute)(void **lanes));
[[noreturn]] void emu_fail(const char *what);
enum { EMU_XOR, EMU_INDEX, EMU_UP, EMU_DOWN };
unsigned emu_shuffle(int line, unsigned value, int kind, unsigned argument);
unsigned emu_ballot(int line, bool predicate);

template <class T> static inline T emu_shuffled(int line, T value, int kind, unsigned argument) {
    static_assert(sizeof(T) == 4, "only 32-bit words can be shuffled");
    unsigned word;
    __builtin_memcpy(&word, &value, 4);
    word = emu_shuffle(line, word, kind, argument);
    __builtin_memcpy(&value, &word, 4);
    return value;
}

#define __syncwarp() emu_warp(__LINE__, nullptr, [](void **) {})
#define __syncthreads() emu_barrier(__LINE__)
#define __cvta_generic_to_shared(pointer) emu_shared_place(pointer)
#define __activemask() (~0u)
#define __shfl_xor_sync(mask, value, argument) emu_shuffled(__LINE__, value, EMU_XOR, argument)
#define __shfl_sync(mask, value, argument) emu_shuffled(__LINE__, value, EMU_INDEX, argument)
#define __shfl_up_sync(mask, value, argument) emu_shuffled(__LINE__, value, EMU_UP, argument)
#define __shfl_down_sync(mask, value, argument) emu_shuffled(__LINE__, value, EMU_DOWN, argument)
#define __ballot_sync(mask, predicate) emu_ballot(__LINE__, predicate)
#define __all_sync(mask, predicate) (emu_ballot(__LINE__, predicate) == ~0u)
#define __any_sync(mask, predicate) (emu_ballot(__LINE__, predicate) != 0u)

template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
// CUDA returns the number if the other operand is NaN.
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }

static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}
static inline int __popc(unsigned value) { return __builtin_popcount(value); }
static inline int __ffs(int value) { return __builtin_ffs(value); }
// Cubes run one after another.
static inline void __threadfence() {}
static inline unsigned atomicExch(unsigned *at, unsigned value) {
    unsigned before = *at;
    *at = value;
    return before;
}
// For mutations: a counter that does not count, and an exchange that stores nothing.
template <class T> static inline void emu_atomic_read(int, unsigned &before, T at, unsigned) { before = *(unsigned *)at; }
static inline unsigned emu_exchange_nothing(unsigned *at, unsigned) { return *at; }
template <class T> static inline void emu_atomic_add(int, unsigned &before, T at, unsigned value) {
    before = *(unsigned *)at;
    *(unsigned *)at += value;
}
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float exp(float a) { return __builtin_expf(a); }
static inline float sqrt(float a) { return __builtin_sqrtf(a); }
static inline float floor(float a) { return __builtin_floorf(a); }
static inline float abs(float a) { return __builtin_fabsf(a); }

// CUDA C++ Programming Guide, "Warp Matrix Functions". The mapping of elements to lanes is unspecified; this one is
// chosen so that no kernel can depend on it by accident.
namespace nvcuda { namespace wmma {
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
struct matrix_a { template <int m, int n, int k> struct of { enum { rows = m, columns = k }; }; };
struct matrix_b { template <int m, int n, int k> struct of { enum { rows = k, columns = n }; }; };
struct accumulator { template <int m, int n, int k> struct of { enum { rows = m, columns = n }; }; };

template <class Use, int m, int n, int k, class T, class Layout = void> struct fragment {
    using shape = typename Use::template of<m, n, k>;
    enum { rows = shape::rows, columns = shape::columns, num_elements = rows * columns / 32 };
    T x[num_elements];
    // The element of the matrix, in row-major order, that is element `i` of a lane.
    static int element(int lane, int i) { return i * 32 + (lane ^ i * 5 % 32); }
};

// Arguments that must be the same in all lanes.
struct emu_address { const void *pointer; unsigned ldm; int layout; };

static inline void emu_same(int line, const void *pointer, unsigned ldm, int layout, unsigned size) {
    if ((size_t)pointer % 32) emu_fail("matrix not aligned to 32 bytes");
    if (ldm * size % 16) emu_fail("rows of a matrix not aligned to 16 bytes");
    emu_address mine = {pointer, ldm, layout};
    emu_warp(line, &mine, [](void **lanes) {
        emu_address first = *(emu_address *)lanes[0];
        for (int lane = 1; lane < 32; lane++) {
            emu_address other = *(emu_address *)lanes[lane];
            bool same = other.pointer == first.pointer && other.ldm == first.ldm && other.layout == first.layout;
            if (!same) emu_fail("lanes with different matrices");
        }
    });
}

template <class F> static inline unsigned emu_offset(int i, unsigned ldm, bool by_rows) {
    int element = F::element(emu_current->index % 32, i);
    unsigned row = element / F::columns, column = element % F::columns;
    return by_rows ? row * ldm + column : column * ldm + row;
}

template <class Use, int m, int n, int k, class T> static inline bool emu_by_rows(fragment<Use, m, n, k, T, row_major> &) { return true; }
template <class Use, int m, int n, int k, class T> static inline bool emu_by_rows(fragment<Use, m, n, k, T, col_major> &) { return false; }

template <class Use, int m, int n, int k, class T, class Layout>
static inline void load_matrix_sync(fragment<Use, m, n, k, T, Layout> &f, const T *p, unsigned ldm, int line = __builtin_LINE()) {
    bool by_rows = emu_by_rows(f);
    emu_same(line, p, ldm, by_rows, sizeof(T));
    for (int i = 0; i < f.num_elements; i++) f.x[i] = p[emu_offset<fragment<Use, m, n, k, T, Layout>>(i, ldm, by_rows)];
}

template <int m, int n, int k, class T>
static inline void store_matrix_sync(T *p, const fragment<accumulator, m, n, k, T> &f, unsigned ldm, layout_t layout,
                                     int line = __builtin_LINE()) {
    emu_same(line, p, ldm, layout, sizeof(T));
    bool by_rows = layout == mem_row_major;
    for (int i = 0; i < f.num_elements; i++) p[emu_offset<fragment<accumulator, m, n, k, T>>(i, ldm, by_rows)] = f.x[i];
}

template <class Use, int m, int n, int k, class T, class Layout, class V>
static inline void fill_fragment(fragment<Use, m, n, k, T, Layout> &f, V value) {
    for (T &x : f.x) x = value;
}

// Sums are kept wide enough to see whether one leaves its type: int32, or the integers that are exact in f32.
static inline bool emu_is_exact(long long sum, int) { return sum == (int)sum; }
static inline bool emu_is_exact(double sum, float) { return sum == (float)sum; }
template <class T> struct emu_wide;
template <> struct emu_wide<int> { using type = long long; };
template <> struct emu_wide<float> { using type = double; };

template <int m, int n, int k, class T, class S, class LayoutA, class LayoutB>
static inline void mma_sync(fragment<accumulator, m, n, k, S> &d, const fragment<matrix_a, m, n, k, T, LayoutA> &a,
                            const fragment<matrix_b, m, n, k, T, LayoutB> &b, const fragment<accumulator, m, n, k, S> &c,
                            int line = __builtin_LINE()) {
    using A = fragment<matrix_a, m, n, k, T, LayoutA>;
    using B = fragment<matrix_b, m, n, k, T, LayoutB>;
    using C = fragment<accumulator, m, n, k, S>;
    struct operands { C *d; const A *a; const B *b; const C *c; } mine = {&d, &a, &b, &c};
    emu_warp(line, &mine, [](void **lanes) {
        using wide = typename emu_wide<S>::type;
        static T a[m * k], b[k * n];
        static wide sums[m * n];
        for (int lane = 0; lane < 32; lane++) {
            operands &of = *(operands *)lanes[lane];
            for (int i = 0; i < A::num_elements; i++) a[A::element(lane, i)] = of.a->x[i];
            for (int i = 0; i < B::num_elements; i++) b[B::element(lane, i)] = of.b->x[i];
            for (int i = 0; i < C::num_elements; i++) sums[C::element(lane, i)] = of.c->x[i];
        }
        for (int i = 0; i < m * n; i++) {
            for (int j = 0; j < k; j++) sums[i] += (wide)a[i / n * k + j] * (wide)b[j * n + i % n];
            if (!emu_is_exact(sums[i], S())) emu_fail("a sum of wmma is not exact in its type");
        }
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < C::num_elements; i++) ((operands *)lanes[lane])->d->x[i] = (S)sums[C::element(lane, i)];
    });
}
}}

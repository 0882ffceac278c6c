// What generated CUDA C++ needs to be compiled by g++ and run on the host: see runtime.cpp.
typedef __SIZE_TYPE__ size_t;
typedef _Float16 __half;

#define __device__
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
#define __align__(bytes)

struct emu_dim { unsigned x, y, z; };

// A thread of a cube: its saved stack pointer, where it is in the cube, and what it waits for.
struct emu_thread {
    void *stack;
    emu_dim id;
    int index, state;
};

extern emu_thread *emu_current;
extern emu_dim blockIdx, gridDim, blockDim;
extern char *emu_shared;
#define threadIdx (emu_current->id)

// Everything that threads do together takes the line that it is called from: all must come from the same one.
void emu_barrier(int line);
void emu_mma_s8(int line, unsigned &d0, unsigned &d1, unsigned &d2, unsigned &d3, unsigned a0, unsigned a1, unsigned a2,
                unsigned a3, unsigned b0, unsigned b1, unsigned c0, unsigned c1, unsigned c2, unsigned c3);
void emu_mma_f16(int line, float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                 unsigned b0, unsigned b1, float c0, float c1, float c2, float c3);
enum { EMU_XOR, EMU_INDEX, EMU_UP, EMU_DOWN };
unsigned emu_shuffle(int line, unsigned value, int kind, unsigned argument);
unsigned emu_ballot(int line, bool predicate);

template <class T> static inline T emu_shuffled(int line, T value, int kind, unsigned argument) {
    static_assert(sizeof(T) == 4, "only words are shuffled");
    unsigned word;
    __builtin_memcpy(&word, &value, 4);
    word = emu_shuffle(line, word, kind, argument);
    __builtin_memcpy(&value, &word, 4);
    return value;
}

#define __syncthreads() emu_barrier(__LINE__)
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
// CUDA's return the number where the other is none.
static inline float min(float a, float b) { return __builtin_fminf(a, b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a, b); }

static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}
static inline int __popc(unsigned value) { return __builtin_popcount(value); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float exp(float a) { return __builtin_expf(a); }
static inline float sqrt(float a) { return __builtin_sqrtf(a); }
static inline float floor(float a) { return __builtin_floorf(a); }
static inline float abs(float a) { return __builtin_fabsf(a); }

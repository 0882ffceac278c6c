typedef __SIZE_TYPE__ size_t;
typedef _Float16 __half;
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__
#define __align__(x)
struct emu_dim { unsigned x, y, z; };
struct emu_fiber { void* sp; emu_dim tid; int index, state, site; };
extern emu_fiber* emu_cur;
extern emu_dim blockIdx, gridDim, blockDim;
#define threadIdx (emu_cur->tid)
extern char* emu_smem;
void emu_sync(int site);
void emu_mma_s8(int site, unsigned&, unsigned&, unsigned&, unsigned&, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned);
void emu_mma_f16(int site, float&, float&, float&, float&, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, float, float, float, float);
// kind 0: xor, 1: index, 2: up, 3: down
unsigned emu_shfl(int site, unsigned v, int kind, unsigned arg);
unsigned emu_ballot(int site, bool p);
#define __syncthreads() emu_sync(__LINE__)
#define __activemask() (~0u)
template<class T> static inline T emu_sh(int site, T v, int kind, unsigned arg) { static_assert(sizeof(T)==4); unsigned w; __builtin_memcpy(&w,&v,4); w=emu_shfl(site,w,kind,arg); __builtin_memcpy(&v,&w,4); return v; }
#define __shfl_xor_sync(m, v, a) emu_sh(__LINE__, v, 0, a)
#define __shfl_sync(m, v, a) emu_sh(__LINE__, v, 1, a)
#define __shfl_up_sync(m, v, a) emu_sh(__LINE__, v, 2, a)
#define __shfl_down_sync(m, v, a) emu_sh(__LINE__, v, 3, a)
#define __ballot_sync(m, p) emu_ballot(__LINE__, p)
#define __all_sync(m, p) (emu_ballot(__LINE__, p)==~0u)
#define __any_sync(m, p) (emu_ballot(__LINE__, p)!=0u)
template<class T> static inline T min(T a, T b) { return b < a ? b : a; }
template<class T> static inline T max(T a, T b) { return a < b ? b : a; }
static inline float min(float a, float b) { return __builtin_fminf(a,b); }
static inline float max(float a, float b) { return __builtin_fmaxf(a,b); }
static inline int __dp4a(int a, int b, int c) { for (int i=0;i<4;i++) c += (int)(signed char)(a>>8*i) * (int)(signed char)(b>>8*i); return c; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a,b,c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a,b,c); }
static inline float exp(float a) { return __builtin_expf(a); }
static inline float sqrt(float a) { return __builtin_sqrtf(a); }
static inline float floor(float a) { return __builtin_floorf(a); }
static inline float abs(float a) { return __builtin_fabsf(a); }

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cstdint>
#include <vector>
#include <sys/mman.h>
#include <sanitizer/asan_interface.h>
typedef _Float16 __half;
struct emu_dim { unsigned x, y, z; };
struct emu_fiber { void* sp; emu_dim tid; int index, state, site; };
emu_fiber* emu_cur; emu_dim blockIdx, gridDim, blockDim; char* emu_smem;
extern "C" void emu_entry(char** bufs, const void* info);
extern const int emu_args; extern const unsigned emu_info_size;
enum { Ready, WaitWarp, WaitCube, Done };
struct Warp { int arrived = 0, site = 0; unsigned a[32][4], b[32][2], v[32], r[32]; float c[32][4]; unsigned u[32][4]; };
static std::vector<emu_fiber> fibers; static std::vector<char*> stacks; static std::vector<Warp> warps;
static int total, cube_arrived, cube_site, done;
static void* main_sp; static char** arg_ptrs; static const void* info_ptr;
static const size_t STACK = 2u << 20, GUARD = 1u << 20;
[[noreturn]] static void fail(const char* what) { fprintf(stderr, "EMU: %s (cube %u %u, thread %d)\n", what, blockIdx.x, blockIdx.y, emu_cur ? emu_cur->index : -1); exit(3); }
extern "C" void emu_switch(void** save, void* load);
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
static void yield() { emu_switch(&emu_cur->sp, main_sp); }
static void body() { emu_entry(arg_ptrs, info_ptr); emu_cur->state = Done; done++; if (cube_arrived) fail("a thread ended while others wait at a barrier"); yield(); abort(); }
void emu_sync(int site) {
  if (done) fail("barrier after the end of a thread");
  if (cube_arrived == 0) cube_site = site; else if (cube_site != site) fail("threads at different barriers");
  if (++cube_arrived == total) { cube_arrived = 0; for (auto& f : fibers) f.state = Ready; return; }
  emu_cur->state = WaitCube; yield();
}
template<class F> static void collective(int site, F all) {
  Warp& w = warps[emu_cur->index / 32];
  if (w.arrived == 0) w.site = site; else if (w.site != site) fail("lanes at different warp instructions");
  if (++w.arrived == 32) { w.arrived = 0; all(w); for (int l = 0; l < 32; l++) fibers[emu_cur->index / 32 * 32 + l].state = Ready; return; }
  emu_cur->state = WaitWarp; yield();
}
void emu_mma_s8(int site, unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
  Warp& w = warps[emu_cur->index / 32]; int l = emu_cur->index % 32;
  unsigned a[4] = {a0,a1,a2,a3}, c[4] = {c0,c1,c2,c3}; memcpy(w.a[l], a, 16); w.b[l][0] = b0; w.b[l][1] = b1; memcpy(w.u[l], c, 16);
  collective(site, [](Warp& w) {
    // PTX ISA, "Matrix fragments for mma.m16n8k32": element i of A: row g (+8 for i in 4..8, 12..16), column 4t + i%4 (+16 from i 8); of B: row 4t + i%4 (+16 from 4), column g;
    // of C: row g (+8 from 2), column 2t + i%2.
    static signed char A[16][32], B[32][8];
    for (int l = 0; l < 32; l++) { int g = l / 4, t = l % 4;
      for (int i = 0; i < 16; i++) { int row = (i / 4) % 2 ? g + 8 : g, col = t * 4 + i % 4 + (i >= 8 ? 16 : 0); A[row][col] = (signed char)(w.a[l][i / 4] >> 8 * (i % 4)); }
      for (int i = 0; i < 8; i++) B[t * 4 + i % 4 + (i >= 4 ? 16 : 0)][g] = (signed char)(w.b[l][i / 4] >> 8 * (i % 4)); }
    for (int l = 0; l < 32; l++) { int g = l / 4, t = l % 4;
      for (int i = 0; i < 4; i++) { int row = i >= 2 ? g + 8 : g, col = 2 * t + i % 2; int64_t s = (int32_t)w.u[l][i];
        for (int k = 0; k < 32; k++) s += (int)A[row][k] * (int)B[k][col];
        if (s != (int32_t)s) fail("overflow in mma"); w.u[l][i] = (uint32_t)(int32_t)s; } }
  });
  r0 = w.u[l][0]; r1 = w.u[l][1]; r2 = w.u[l][2]; r3 = w.u[l][3];
}
static float hf(unsigned w, int half) { unsigned short s = half ? w >> 16 : w & 0xffff; __half h; memcpy(&h, &s, 2); return (float)h; }
void emu_mma_f16(int site, float& r0, float& r1, float& r2, float& r3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {
  Warp& w = warps[emu_cur->index / 32]; int l = emu_cur->index % 32;
  unsigned a[4] = {a0,a1,a2,a3}; float c[4] = {c0,c1,c2,c3}; memcpy(w.a[l], a, 16); w.b[l][0] = b0; w.b[l][1] = b1; memcpy(w.c[l], c, 16);
  collective(site, [](Warp& w) {
    for (int l = 0; l < 32; l++) { int g = l / 4, t = l % 4;
      for (int o = 0; o < 4; o++) { int row = g + 8 * (o / 2), col = 2 * t + o % 2; float s = 0;
        for (int k = 0; k < 16; k++) s += hf(w.a[(row % 8) * 4 + (k % 8) / 2][row / 8 + 2 * (k / 8)], k % 2) * hf(w.b[col * 4 + (k % 8) / 2][k / 8], k % 2);
        w.c[l][o] += s; } }
  });
  r0 = w.c[l][0]; r1 = w.c[l][1]; r2 = w.c[l][2]; r3 = w.c[l][3];
}
unsigned emu_shfl(int site, unsigned v, int kind, unsigned arg) {
  Warp& w = warps[emu_cur->index / 32]; int l = emu_cur->index % 32; w.v[l] = v;
  int from = kind == 0 ? l ^ arg : kind == 1 ? arg % 32 : kind == 2 ? l - (int)arg : l + (int)arg; if (from < 0 || from > 31) from = l; w.u[l][0] = from;
  collective(site, [](Warp& w) { for (int l = 0; l < 32; l++) w.r[l] = w.v[w.u[l][0]]; });
  return w.r[l];
}
unsigned emu_ballot(int site, bool p) {
  Warp& w = warps[emu_cur->index / 32]; int l = emu_cur->index % 32; w.v[l] = p;
  collective(site, [](Warp& w) { unsigned m = 0; for (int l = 0; l < 32; l++) m |= w.v[l] << l; for (auto& r : w.r) r = m; });
  return w.r[l];
}
static char* guarded(size_t size, char** whole) {
  size_t len = GUARD + (size + 255) / 256 * 256 + GUARD; *whole = (char*)aligned_alloc(256, len); memset(*whole, 0x7b, len);
  __asan_poison_memory_region(*whole, GUARD); __asan_poison_memory_region(*whole + GUARD + size, len - GUARD - size); return *whole + GUARD;
}
static void run_cube(int policy) {
  for (int i = 0; i < total; i++) { auto& f = fibers[i]; unsigned x = blockDim.x, y = blockDim.y; f = {nullptr, {i % x, i / x % y, i / (x * y)}, i, Ready, 0};
    void** sp = (void**)(stacks[i] + STACK - 64); *--sp = nullptr; *--sp = (void*)body; for (int k = 0; k < 6; k++) *--sp = nullptr; f.sp = sp; }
  done = cube_arrived = 0; for (auto& w : warps) w.arrived = 0;
  int n = (int)warps.size();
  while (done < total) {
    bool any = false;
    if (policy == 2) { int start = rand() % total; for (int k = 0; k < total; k++) { auto& f = fibers[(start + k) % total]; if (f.state == Ready) { any = true; emu_cur = &f; emu_switch(&main_sp, f.sp); if (rand() % 8 == 0) break; } } }
    else for (int wi = 0; wi < n; wi++) { int w = policy ? n - 1 - wi : wi;
      for (bool more = true; more;) { more = false; for (int k = 0; k < 32; k++) { int i = w * 32 + (policy ? 31 - k : k); if (i < total && fibers[i].state == Ready) { more = any = true; emu_cur = &fibers[i]; emu_switch(&main_sp, fibers[i].sp); } } } }
    if (!any) fail("nobody can go on");
  }
  emu_cur = nullptr;
}
int main(int argc, char** argv) {
  FILE* in = fopen(argv[1], "rb"); auto u32 = [&] { uint32_t v; if (fread(&v, 4, 1, in) != 1) exit(9); return v; };
  unsigned nbuf = u32(), nargs = u32(), info = u32(); unsigned gx = u32(), gy = u32(), gz = u32(); blockDim.x = u32(); blockDim.y = u32(); blockDim.z = u32(); unsigned shared = u32(), policies = u32();
  gridDim = {gx, gy, gz};
  if ((int)nargs != emu_args) fail("number of buffers"); if (info < emu_info_size) fail("size of info");
  std::vector<unsigned> size(nbuf), arg(nargs); for (auto& s : size) s = u32(); for (auto& a : arg) a = u32();
  std::vector<char> inf(info + 256); if (fread(inf.data(), 1, info, in) != info) exit(9);
  std::vector<std::vector<char>> data(nbuf), first(nbuf); std::vector<char*> buf(nbuf), whole(nbuf), args(nargs);
  for (unsigned i = 0; i < nbuf; i++) { data[i].resize(size[i]); if (fread(data[i].data(), 1, size[i], in) != size[i]) exit(9); buf[i] = guarded(size[i], &whole[i]); }
  fclose(in);
  for (unsigned i = 0; i < nargs; i++) args[i] = buf[arg[i]];
  arg_ptrs = args.data(); info_ptr = inf.data();
  total = blockDim.x * blockDim.y * blockDim.z; fibers.resize(total); warps.resize((total + 31) / 32);
  for (int i = 0; i < total; i++) { char* s = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); mprotect(s, 4096, PROT_NONE); stacks.push_back(s); }
  char* smem_whole; emu_smem = guarded(shared, &smem_whole);
  for (unsigned p = 0; p < policies; p++) {
    for (unsigned i = 0; i < nbuf; i++) memcpy(buf[i], data[i].data(), size[i]);
    unsigned cubes = gx * gy * gz;
    for (unsigned c = 0; c < cubes; c++) { unsigned b = p == 1 ? cubes - 1 - c : c; blockIdx = {b % gx, b / gx % gy, b / (gx * gy)}; memset(emu_smem, p == 1 ? 0x5a : 0xff, shared); run_cube(p); }
    for (unsigned i = 0; i < nbuf; i++) { if (p == 0) first[i].assign(buf[i], buf[i] + size[i]); else if (memcmp(first[i].data(), buf[i], size[i])) { fprintf(stderr, "buffer %u\n", i); fail("results depend on the order of threads"); } }
  }
  FILE* out = fopen(argv[2], "wb"); for (auto& b : first) fwrite(b.data(), 1, b.size(), out); fclose(out);
  return 0;
}

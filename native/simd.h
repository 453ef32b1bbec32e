// Vectors by the compiler's own extension: AVX-512, AVX2, SSE or NEON come from the flags alone.
#pragma once
#include <cstddef>
#include <utility>

namespace WECFL_ISA {

#ifdef __AVX512F__
#define LANES_16 1
inline constexpr int LANES = 16;
#else
#define LANES_16 0
inline constexpr int LANES = 8;
#endif

typedef float V __attribute__((vector_size(LANES * 4), may_alias));
typedef float U __attribute__((vector_size(LANES * 4), aligned(4), may_alias));  // unaligned
typedef int I __attribute__((vector_size(LANES * 4), may_alias));
typedef unsigned char B __attribute__((vector_size(LANES), aligned(1), may_alias));  // a byte for each lane
typedef float Quarter __attribute__((vector_size(16)));

template <int N>
struct Constant {
    static constexpr int value = N;
};

#define UNROLL _Pragma("GCC unroll 32")
#define EACH(i, n) UNROLL for (int i = 0; i < (n); i++)  // over registers: unrolled
#define INLINE static inline __attribute__((always_inline))

INLINE V load(const float* p) { return *reinterpret_cast<const V*>(p); }
INLINE void store(float* p, V v) { *reinterpret_cast<V*>(p) = v; }
INLINE V load_any(const float* p) { return *reinterpret_cast<const U*>(p); }
INLINE void store_any(float* p, V v) { *reinterpret_cast<U*>(p) = v; }
// A pass over tensors that no cache holds any more waits for memory; its rows are too short for the processor to run
// ahead by itself (norms: a sixth faster).
INLINE void fetch_ahead(const float* p) { __builtin_prefetch(p + 64 * LANES); }
#if LANES_16
INLINE V all(float f) { return V{f, f, f, f, f, f, f, f, f, f, f, f, f, f, f, f}; }
#else
INLINE V all(float f) { return V{f, f, f, f, f, f, f, f}; }
#endif
INLINE V select(I mask, V yes, V no) { return mask ? yes : no; }
INLINE V positive(V v) { return select(v > 0, v, V{}); }

INLINE float sum(V v) {
    Quarter q = {};
    UNROLL for (int i = 0; i < LANES; i += 4)
        q += Quarter{v[i], v[i + 1], v[i + 2], v[i + 3]};
    return (q[0] + q[2]) + (q[1] + q[3]);
}

// Turns LANES vectors, a square, by exchanging ever larger neighbours.
template <int D, size_t... i>
INLINE void exchange(V& a, V& b, std::index_sequence<i...>) {
    const V low = __builtin_shufflevector(a, b, (i & D ? int(i) - D + LANES : int(i))...);
    b = __builtin_shufflevector(a, b, (i & D ? int(i) + LANES : int(i) + D)...);
    a = low;
}
template <int D = 1>
INLINE void transpose(V* v) {
    EACH(i, LANES)
        if (!(i & D)) exchange<D>(v[i], v[i | D], std::make_index_sequence<LANES>{});
    if constexpr (2 * D < LANES) transpose<2 * D>(v);
}

// Lane i of the result is the sum of v[i]; v are LANES vectors.
template <int D = 1>
INLINE V lane_sums(V* v) {
    EACH(i, LANES / D)
        if (i % 2 == 0) {
            exchange<D>(v[i * D], v[(i + 1) * D], std::make_index_sequence<LANES>{});
            v[i * D] += v[(i + 1) * D];
        }
    if constexpr (2 * D < LANES) return lane_sums<2 * D>(v);
    return v[0];
}

}  // namespace WECFL_ISA

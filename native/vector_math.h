// Functions of vectors, each to about one unit in the last place: the polynomials are those of Cephes, and for
// erf a fit of log erfc.
#pragma once
#include "simd.h"

namespace WECFL_ISA {

INLINE V horner(V x, const float* coefficients, int count) {
    V y = all(coefficients[0]);
    UNROLL for (int i = 1; i < count; i++) y = y * x + coefficients[i];
    return y;
}

INLINE V expm1_near_0(V x) {  // |x| ≤ ln(2)/2
    constexpr float c[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                           4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    return horner(x, c, 6) * x * x + x;
}

INLINE V exp_of(V x) {  // NaN stays NaN
    x = select(x > 88.f, all(88.f), x);
    x = select(x < -87.f, all(-87.f), x);
    const V magic = all(12582912.f);  // 1.5 · 2²³: adding it rounds to whole numbers
    const V n = (x * 1.44269504088896341f + magic) - magic;
    const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const I power = (__builtin_convertvector(n, I) + 127) << 23;
    return (expm1_near_0(r) + 1.f) * reinterpret_cast<const V&>(power);
}

INLINE V expm1_of(V x) { return select(x > -.3f, expm1_near_0(x), exp_of(x) - 1.f); }  // x ≤ 0.3

INLINE V sigmoid_of(V x) { return 1.f / (1.f + exp_of(-x)); }

INLINE V tanh_of(V x) {
    const V size = select(x < 0, -x, x), square = x * x;
    constexpr float c[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                           -3.33332819422e-1f};
    const V small = horner(square, c, 5) * square * x + x;
    const V large = 1.f - 2.f / (exp_of(2.f * size) + 1.f);
    return select(size < 0.625f, small, select(x < 0, -large, large));
}

// |x| < 1: x · a polynomial of x²; up to 4, where it is 1 in single precision: 1 − exp(a polynomial).
INLINE V erf_of(V x) {
    V size = select(x < 0, -x, x);
    size = select(size > 4.f, all(4.f), size);
    constexpr float near[] = {-9.673590284e-06f, 1.126825373e-04f, -8.484396385e-04f, 5.221053492e-03f, -2.686543763e-02f, 1.128378287e-01f, -3.761263788e-01f, 1.128379226e+00f};
    constexpr float far[] = {-2.367065463e-06f, -2.530671964e-06f, 4.728429849e-05f, -2.217094006e-04f, 8.763929363e-04f, -3.194743302e-03f, 1.096297335e-02f, -3.664631024e-02f, -2.123760939e+00f, -8.029021263e+00f, -7.806815147e+00f};
    const V small = horner(x * x, near, 8) * x;
    const V large = 1.f - exp_of(horner((size - 2.5f) * (2.f / 3.f), far, 11));
    return select(size < 1.f, small, select(x < 0, -large, large));
}

}  // namespace WECFL_ISA

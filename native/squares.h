// Convolutions of 3 × 3 and stride 1 with 16 products for 36: squares of 2 × 2 pixels of the output at a time.
//
// The scheme of winograd.h for three taps, along rows and along columns. Along either, P, Q, A and Z are products
// of combined inputs and combined weights, and the two outputs are A + P + Q and Z + P − Q. Of the 16 pairs of them
// (a point) each is a product of matrices, output channels × input channels × squares. The gradient of the weights is
// the same form read the other way: at each point, output channels × squares × input channels. Its lanes are summed at
// once, so that it keeps a number for each weight and point, not a vector.
#pragma once
#include "conv_loops.h"
#include "winograd.h"

namespace WECFL_ISA {

// Squares that are multiplied at a time, beside 4 channels, and that wait for it in the first-level cache.
inline constexpr int SQUARES = LANES_16 ? 4 : 3;
static_assert(SQUARES <= wecfl::MOST_SQUARES);

// Of four rows or columns d, the combination is d[plus] + sign · d[other].
struct Combination {
    int plus, other;
    float sign;
};
inline constexpr Combination COMBINED[4] = {{2, 1, 1}, {2, 1, -1}, {0, 2, -1}, {3, 1, -1}};

// Weights w[o][c][3][3], combined: to[point][o][c]; for the input's gradient to[point][c][o] of the turned kernels.
// Turning exchanges A and Z. A vector is combined at a time; what the last one of a row has too much is overwritten by
// the next row, or lies in the gap between two points.
static void combine_square_weights(int in_channels, int out_channels, const float* w, bool back, float* to) {
    const size_t point = wecfl::square_point(in_channels, out_channels);
    const int rows = back ? in_channels : out_channels, columns = back ? out_channels : in_channels;
    const size_t row_step = back ? 9 : 9 * size_t(in_channels), column_step = back ? 9 * size_t(in_channels) : 9;
    const int forms[4] = {P, Q, back ? Z : A, back ? A : Z};
    auto four = [](V a, V b, V c, V* out) {
        out[P] = .5f * (a + b + c), out[Q] = .5f * (a - b + c), out[A] = a, out[Z] = c;
    };
    for (int r = 0; r < rows; r++, to += columns)
        for (int q = 0; q < columns; q += LANES) {
            alignas(64) float g[9][LANES];
            for (int n = 0; n < LANES; n++) {
                const float* from = w + r * row_step + (q + n < columns ? q + n : q) * column_step;
                EACH(k, 9) g[k][n] = from[k];
            }
            V along[3][4], combined[4];
            EACH(i, 3) four(load(g[3 * i]), load(g[3 * i + 1]), load(g[3 * i + 2]), along[i]);
            EACH(j, 4) {
                four(along[0][j], along[1][j], along[2][j], combined);
                EACH(i, 4) store_any(to + q + (forms[i] * 4 + forms[j]) * point, combined[i]);
            }
        }
}

// first and second become first + v and first − v.
INLINE void add_and_subtract(float* first, float* second, V v) {
    const V old = load(first);
    store(first, old + v);
    store(second, old - v);
}

// N squares from column x on, and the first or both of their rows.
template <int N>
INLINE void conv_some_squares(const ConvShape& s, const float* in, const float* w, const float* bias, float* room,
                              float* out, int x, bool both) {
    const size_t point = (size_t(s.in_channels) * N + 1) * LANES;  // one more: powers of two share places in a cache
    const size_t weights = wecfl::square_point(s.in_channels, s.out_channels);
    const bool even = x + 2 * N <= s.width;
    float* sums = room + 4 * point;  // P ± Q along rows: [o][square][row][column]
    alignas(64) float held[4 * N * 2 * LANES];  // P ± Q along columns
    ConvShape f = s;
    f.in_plane = N * LANES;
    in += x * LANES;
    out += x * LANES;
    for (int i = P; i <= (both ? Z : A); i++) {
        const float *plus = in + COMBINED[i].plus * s.in_row, *other = in + COMBINED[i].other * s.in_row;
        const float sign = COMBINED[i].sign;
        float* to = room;
        for (int c = 0; c < s.in_channels; c++, plus += s.in_plane, other += s.in_plane) {
            // The rows that the next pair of rows reads beside these, into the second-level cache.
            if (i == P || i == Q) {
                const float* next = plus + (i == P ? 2 : 3) * s.in_row;
                EACH(k, 2 * N) __builtin_prefetch(next + k * LANES, 0, 2);
            }
            V d[2 * N + 2];
            EACH(k, 2 * N + 1) d[k] = load(plus + k * LANES) + sign * load(other + k * LANES);
            d[2 * N + 1] = even ? load(plus + (2 * N + 1) * LANES) + sign * load(other + (2 * N + 1) * LANES) : V{};
            EACH(q, N) {
                store(to + P * point, d[2 * q + 2] + d[2 * q + 1]);
                store(to + Q * point, d[2 * q + 2] - d[2 * q + 1]);
                store(to + A * point, d[2 * q] - d[2 * q + 2]);
                store(to + Z * point, d[2 * q + 3] - d[2 * q + 1]);
                to += LANES;
            }
        }
        int o = 0;
        auto channels = [&](auto ob) {
            constexpr int OB = decltype(ob)::value;
            float *sum = sums + size_t(o) * N * 4 * LANES, *top = out + o * s.out_plane;
            for (int j = P; j <= Z; j++) {
                V v[OB][N];
                conv_tile<1, 1, 1, OB, N>(f, room + j * point, w + (i * 4 + j) * weights + size_t(o) * s.in_channels,
                                          bias && i == P && j == P ? bias + o : nullptr,
                                          [&](int p, int q, V each) { v[p][q] = each; });
                auto each = [&](auto f) {
                    EACH(p, OB)
                        EACH(q, N) f(p, q, held + (p * N + q) * 2 * LANES, v[p][q]);
                };
                if (j == P) {
                    each([](int, int, float* pair, V v) { store(pair, v); });
                    continue;
                }
                if (j == Q) {
                    each([](int, int, float* pair, V v) { add_and_subtract(pair, pair + LANES, v); });
                    continue;
                }
                const int column = (j == Z) * LANES;
                float* to = sum + column;
                each([&](int, int, float* pair, V& v) { v += load(pair + column); });
                if (i == P)
                    each([&](int p, int q, float*, V v) { store(to + (p * N + q) * 4 * LANES, v); });
                else if (i == Q)
                    each([&](int p, int q, float*, V v) {
                        float *both = to + (p * N + q) * 4 * LANES, *place = top + p * s.out_plane + 2 * q * LANES + column;
                        add_and_subtract(both, both + 2 * LANES, v);
                        __builtin_prefetch(place, 1), __builtin_prefetch(place + s.out_row, 1);
                    });
                else {
                    if (i == Z) to += 2 * LANES;
                    float* place = top + (i == Z) * s.out_row + column;
                    each([&](int p, int q, float*, V v) {
                        if (q < N - 1 || even || !column)
                            store(place + p * s.out_plane + 2 * q * LANES, v + load(to + (p * N + q) * 4 * LANES));
                    });
                }
            }
            o += OB;
        };
        while (s.out_channels - o >= 4) channels(Constant<4>{});
        while (o < s.out_channels) channels(Constant<1>{});
    }
}

// Like conv_forward, with combined weights and room for the combined inputs and for sums.
static void conv_squares(const ConvShape& s, const float* in, const float* w, const float* bias, float* room,
                         float* out, int from, int to) {
    for (int y = from; y < to; y += 2, out += 2 * s.out_row)
        in_tiles<SQUARES>((s.width + 1) / 2, [&](int square, auto size) {
            conv_some_squares<decltype(size)::value>(s, in + y * s.in_row, w, bias, room, out, 2 * square, y + 1 < to);
        });
}

// ---- the gradient of the weights ---------------------------------------------------------------

// Sums over lanes are kept for 4 output and so many input channels, in one vector.
inline constexpr int OUTS = 4, INS = LANES / OUTS;

// Rows [from, to) of squares, at the points of one combination of rows: ins[column form][c][square] and
// outs[column form][o][square], with `plane` floats for each channel. Channels that fill up a block are left as they are:
// nobody reads their sums.
template <int I>
static void combine_points(const ConvShape& s, const float* in, const float* grad, int from, int to, size_t plane,
                           float* ins, float* outs) {
    const int across = (s.width + 1) / 2, whole = s.width / 2;
    const size_t in_point = rounded_up(s.in_channels, INS) * plane, out_point = rounded_up(s.out_channels, OUTS) * plane;
    auto put = [](float* to, size_t point, V p, V q, V a, V z) {
        store(to + P * point, p), store(to + Q * point, q), store(to + A * point, a), store(to + Z * point, z);
    };
    // The next band's rows come while this one is multiplied: P and Q fetch one of every two.
    auto fetch_next = [](const float* square) {
        if (I == P || I == Q) __builtin_prefetch(square), __builtin_prefetch(square + LANES);
    };
    auto channels = [&](int count, float* to_channel, auto row) {
        for (int c = 0; c < count; c++, to_channel += plane) {
            float* at = to_channel;
            for (int y = from; y < to; y++, at += across * LANES) row(c, y, at);
        }
    };
    channels(s.in_channels, ins, [&](int c, int y, float* at) {
        constexpr Combination r = COMBINED[I];
        const float* top = in + c * s.in_plane + 2 * y * s.in_row;
        const float *plus = top + r.plus * s.in_row, *other = top + r.other * s.in_row;
        // A last row or column outside of the output has none of the input either.
        if (I == Z && 2 * y + 1 >= s.height) plus = other;
        auto column = [&](int x) { return load(plus + x * LANES) + r.sign * load(other + x * LANES); };
        V d0 = column(0), d1 = column(1);
        const float* next = top + ((I == P ? 2 : 3) + 2 * (to - from)) * s.in_row;
        for (int x = 0; x < across; x++, at += LANES) {
            fetch_next(next + 2 * x * LANES);
            const V d2 = column(2 * x + 2), d3 = x < whole ? column(2 * x + 3) : V{};
            put(at, in_point, d1 + d2, d2 - d1, d0 - d2, d3 - d1);
            d0 = d2, d1 = d3;
        }
    });
    channels(s.out_channels, outs, [&](int o, int y, float* at) {
        const float *top = grad + o * s.out_plane + 2 * y * s.out_row, *bottom = top + s.out_row;
        const bool both = 2 * y + 1 < s.height;
        auto column = [&](int x) {
            if (I == A) return load(top + x * LANES);
            const V below = both ? load(bottom + x * LANES) : V{};
            return I == Z ? below : I == P ? load(top + x * LANES) + below : load(top + x * LANES) - below;
        };
        const float* next = top + ((I == P ? 0 : 1) + 2 * (to - from)) * s.out_row;
        for (int x = 0; x < across; x++, at += LANES) {
            fetch_next(next + 2 * x * LANES);
            const V first = column(2 * x), second = x < whole ? column(2 * x + 1) : V{};
            put(at, out_point, first + second, first - second, first, second);
        }
    });
}

// sums[o][c] += Σ over squares and lanes of outs[o] · ins[c], in blocks of OUTS × INS channels.
static __attribute__((noinline)) void multiply_squares(int in_channels, int out_channels, size_t count, size_t plane,
                                                       const float* ins, const float* outs, float* sums) {
    for (int o = 0; o < out_channels; o += OUTS)
        for (int c = 0; c < in_channels; c += INS, sums += LANES) {
            const float *from = ins + c * plane, *up = outs + o * plane;
            V acc[LANES] = {};
            for (size_t n = 0; n < count; n += LANES) {
                V u[INS];
                EACH(q, INS) u[q] = load(from + q * plane + n);
                EACH(p, OUTS) {
                    const V g = load(up + p * plane + n);
                    EACH(q, INS) acc[p * INS + q] += g * u[q];
                }
            }
            store(sums, load(sums) + lane_sums(acc));
        }
}

static void conv_square_weights(const ConvShape& s, const float* in, const float* grad, float* room, float* sums) {
    const int across = (s.width + 1) / 2, down = (s.height + 1) / 2, band = wecfl::square_rows(across, down);
    const size_t plane = (size_t(band) * across + 1) * LANES;  // one more, as above
    const size_t in_point = rounded_up(s.in_channels, INS) * plane, out_point = rounded_up(s.out_channels, OUTS) * plane;
    const size_t point = in_point / plane * (out_point / plane);
    float* outs = room + 4 * in_point;
    for (int y = 0; y < down; y += band) {
        const int to = y + band < down ? y + band : down;
        auto row = [&](auto i) {
            constexpr int I = decltype(i)::value;
            combine_points<I>(s, in, grad, y, to, plane, room, outs);
            for (int j = P; j <= Z; j++)
                multiply_squares(s.in_channels, s.out_channels, size_t(to - y) * across * LANES, plane,
                                 room + j * in_point, outs + j * out_point, sums + (4 * I + j) * point);
        };
        row(Constant<P>{}), row(Constant<Q>{}), row(Constant<A>{}), row(Constant<Z>{});
    }
}

// The gradient (o, c, 3, 3) from the sums at each point.
static void squares_to_weights(int in_channels, int out_channels, const float* sums, float* gradient) {
    const size_t ins = rounded_up(in_channels, INS), point = ins * rounded_up(out_channels, OUTS);
    auto three = [](float p, float q, float a, float z, float* to, int step) {
        to[0] = a + .5f * (p + q), to[step] = .5f * (p - q), to[2 * step] = z + .5f * (p + q);
    };
    for (int o = 0; o < out_channels; o++)
        for (int c = 0; c < in_channels; c++, gradient += 9) {
            const float* m = sums + (size_t(o / OUTS) * (ins / INS) + c / INS) * LANES + o % OUTS * INS + c % INS;
            float rows[4][3];
            for (int i = 0; i < 4; i++) {
                const float* row = m + 4 * i * point;
                three(row[P * point], row[Q * point], row[A * point], row[Z * point], rows[i], 1);
            }
            for (int j = 0; j < 3; j++) three(rows[P][j], rows[Q][j], rows[A][j], rows[Z][j], gradient + j, 3);
        }
}

}  // namespace WECFL_ISA

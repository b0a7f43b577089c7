/* QK-GCC on one core, steered or published: from the spectra of frames to logits. `qkgcc.network.kernel` calls it.

   Frequencies lie in four phases: every fourth bin is a plane of floats along (window, tile of four bins), one after the
   other in memory. Between the windows, and around them, a plane has zeros that convolutions reach into, so that a tap
   is an offset and nothing else; a mask writes the zeros again after each layer. Products are blocks of OUTPUTS planes x
   VECTORS vectors in registers. The phases are what Winograd's convolution needs, and the coarse look at the
   surroundings, which takes four bins as one, as well.

   Compiled once for each instruction set that is worth it; LANES, VECTORS and ENTRY come with the compiler's flags. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef LANES
#define LANES 4
#define VECTORS 2
#define ENTRY qkgcc_steered
#endif
#ifndef OUTPUTS
#define OUTPUTS 6
#endif
#define BLOCK (LANES * VECTORS)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    int32_t windows, bins, numbers, heads, radius;                    /* the front end */
    int32_t channels, window_kernel, kernel, maps, blocks, block_channels, block_kernel;
    int32_t delay_channels, delay_kernel, logit_kernel;
    /* folded front end: R (n, n), r (n, bins), floor (bins), M (heads, n + 1, n + 1), L, N (heads, n + 1, bins),
       T (heads, 2 radius + 1, bins) */
    const float *turn, *shift, *floor, *plain, *by_query, *by_key, *by_both;
    /* convolutions: packed weights (groups of OUTPUTS, inputs, OUTPUTS) and biases; of `local`, and of `gate` where
       there are no blocks, for each of Winograd's points. Those two are all that the published network has. */
    const float *local, *local_bias, *evidence;
    const float *mix, *mix_bias, *gate, *gate_bias;
    const float *down, *down_bias, *along, *along_bias, *across, *across_bias, *up, *up_bias;
    const float *first, *first_bias, *second, *second_bias, *last, *last_bias;
    const float *read; /* (maps) how strongly the first convolution along the delays reads each map */
} Network;

enum { PHASES = 4, MOST_POINTS = 8 };
enum { PLAIN, GELU, SOFTPLUS };

static inline vec splat(float x) { return x - (vec){0}; }
static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec x) { *(vec *)p = x; }
static inline vec where(ivec test, vec a, vec b) { return (vec)((test & (ivec)a) | (~test & (ivec)b)); }
static inline vec smaller(vec a, vec b) { return where(a < b, a, b); }
static inline vec larger(vec a, vec b) { return where(a > b, a, b); }

/* exp(x) for x <= 0: 2^n times a polynomial of the rest */
static inline vec exponential(vec x) {
    x = larger(x, splat(-87.0f));
    vec n = x * 1.44269504f + 12582912.0f; /* rounds: 1.5 * 2^23 leaves whole numbers only */
    ivec whole = (ivec)n - 0x4B400000;
    n -= 12582912.0f;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vec)((ivec)p + (whole << 23));
}

/* log(x) for normal x > 0: the exponent plus a polynomial of the mantissa in [sqrt(1/2), sqrt(2)) */
static inline vec logarithm(vec x) {
    ivec bits = (ivec)x - 0x3F3504F3;
    vec e = __builtin_convertvector(bits >> 23, vec);
    vec m = (vec)((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    vec z = m * m;
    vec p = splat(7.0376836292e-2f);
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    return m + (p * m * z - e * 2.12194440e-4f - 0.5f * z + e * 0.693359375f);
}

/* x (1 + erf(x / sqrt 2)) / 2, erf as a quotient of polynomials on [-4, 4], where it is 1 to the last bit */
static inline vec gelu(vec x) {
    vec y = smaller(larger(x * 0.70710678f, splat(-4.0f)), splat(4.0f));
    vec z = y * y;
    vec p = splat(-2.72614225801306e-10f);
    p = p * z + 2.77068142495902e-08f;
    p = p * z - 2.10102402082508e-06f;
    p = p * z - 5.69250639462346e-05f;
    p = p * z - 7.34990630326855e-04f;
    p = p * z - 2.95459980854025e-03f;
    p = p * z - 1.60960333262415e-02f;
    vec q = splat(-1.45660718464996e-05f);
    q = q * z - 2.13374055278905e-04f;
    q = q * z - 1.68282697438203e-03f;
    q = q * z - 7.37332916720468e-03f;
    q = q * z - 1.42647390514189e-02f;
    return 0.5f * x * (1.0f + y * p / q);
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|), which has a polynomial from 0 to 1 */
static inline vec softplus(vec x) {
    vec e = exponential(smaller(x, -x));
    vec p = splat(0.005384043790400028f);
    p = p * e - 0.03011089190840721f;
    p = p * e + 0.07921062409877777f;
    p = p * e - 0.13746611773967743f;
    p = p * e + 0.19145111739635468f;
    p = p * e - 0.24852944910526276f;
    p = p * e + 0.33320343494415283f;
    p = p * e - 0.49999552965164185f;
    p = p * e + 1.0f;
    return larger(x, splat(0)) + p * e;
}

static inline vec active(vec x, int activation) {
    return activation == GELU ? gelu(x) : activation == SOFTPLUS ? softplus(x) : x;
}

/* `vectors` vectors of `outputs` planes, OUTPUTS at most: sums over inputs, which are wherever `rows` points. The sums are
   in registers until they are written to `tile`: an array that were read in a loop of the compiler's choice might be in
   memory all along. */
static inline __attribute__((always_inline)) void block_of(
    const float *const *rows, ptrdiff_t at, int inputs, const float *weights, int outputs, int vectors, float *tile) {
    vec sums[OUTPUTS][VECTORS];
#pragma GCC unroll 8
    for (int o = 0; o < outputs; o++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[o][v] = splat(0);
    for (int i = 0; i < inputs; i++, weights += OUTPUTS) {
        vec x[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) x[v] = load(rows[i] + at + v * LANES);
#pragma GCC unroll 8
        for (int o = 0; o < outputs; o++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[o][v] += weights[o] * x[v];
    }
#pragma GCC unroll 8
    for (int o = 0; o < outputs; o++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(tile + o * BLOCK + v * LANES, sums[o][v]);
}

/* The next OUTPUTS planes of which `left` are there: where few are, the others would be sums for nothing. */
static inline __attribute__((always_inline)) void block(
    const float *const *rows, ptrdiff_t at, int inputs, const float *weights, int left, int vectors, float *tile) {
    if (left <= 2)
        block_of(rows, at, inputs, weights, 2, vectors, tile);
    else if (left <= 4)
        block_of(rows, at, inputs, weights, 4, vectors, tile);
    else
        block_of(rows, at, inputs, weights, OUTPUTS, vectors, tile);
}

typedef struct {
    const float *bias;  /* (outputs) or NULL */
    const float *add;   /* planes added before the activation, or NULL */
    const float *carry; /* planes added after it, or NULL */
    const float *mask;  /* (length) or NULL */
    ptrdiff_t add_stride, carry_stride;
    int activation;
} Finish;

static inline __attribute__((always_inline)) void finish_as(
    const float *tile, int vectors, int first, int outputs, ptrdiff_t at, float *out, ptrdiff_t stride,
    const Finish *f, int activation) {
    for (int o = first; o < first + OUTPUTS && o < outputs; o++)
        for (int v = 0; v < vectors; v++) {
            ptrdiff_t p = at + v * LANES;
            vec y = load(tile + (o - first) * BLOCK + v * LANES);
            if (f->bias) y += f->bias[o];
            if (f->add) y += load(f->add + o * f->add_stride + p);
            y = active(y, activation);
            if (f->carry) y += load(f->carry + o * f->carry_stride + p);
            if (f->mask) y *= load(f->mask + p);
            store(out + o * stride + p, y);
        }
}

/* Not inlined: the constants of an activation would take the registers that the sums need. */
static __attribute__((noinline)) void finish(
    const float *tile, int vectors, int first, int outputs, ptrdiff_t at, float *out, ptrdiff_t stride, const Finish *f) {
    if (f->activation == GELU)
        finish_as(tile, vectors, first, outputs, at, out, stride, f, GELU);
    else if (f->activation == SOFTPLUS)
        finish_as(tile, vectors, first, outputs, at, out, stride, f, SOFTPLUS);
    else
        finish_as(tile, vectors, first, outputs, at, out, stride, f, PLAIN);
}

/* outputs of `length` floats, rounded up to vectors: what is beyond must be memory of the caller's */
static void product(
    const float *const *rows, int inputs, const float *weights, int outputs, ptrdiff_t length, float *out,
    ptrdiff_t stride, Finish f) {
    for (ptrdiff_t at = 0; at < length;) {
        int vectors = at + BLOCK <= length + LANES - 1 ? VECTORS : 1;
        for (int first = 0; first < outputs; first += OUTPUTS) {
            float tile[OUTPUTS * BLOCK];
            if (vectors == VECTORS)
                block(rows, at, inputs, weights + (ptrdiff_t)first * inputs, outputs - first, VECTORS, tile);
            else
                block(rows, at, inputs, weights + (ptrdiff_t)first * inputs, outputs - first, 1, tile);
            finish(tile, vectors, first, outputs, at, out, stride, &f);
        }
        at += (ptrdiff_t)vectors * LANES;
    }
}

/* Planes with zeros around them */
typedef struct {
    float *data; /* of the first plane's first bin */
    ptrdiff_t row, plane, length;
} Planes;

static ptrdiff_t rounded(ptrdiff_t n, ptrdiff_t to) { return (n + to - 1) / to * to; }

/* Floats that `count` planes take */
static ptrdiff_t planes_size(int count, int windows, ptrdiff_t row, ptrdiff_t margin) {
    return count * rounded(windows * row + 2 * margin + BLOCK, 16);
}

static Planes planes(float **memory, int count, int windows, ptrdiff_t row, ptrdiff_t margin) {
    Planes p = {*memory + margin, row, rounded(windows * row + 2 * margin + BLOCK, 16), windows * row};
    *memory += planes_size(count, windows, row, margin);
    return p;
}

/* Where the taps of a convolution begin, input by input */
static int taps(const float **rows, Planes x, int inputs, int window_kernel, int kernel) {
    int n = 0;
    for (int i = 0; i < inputs; i++)
        for (int w = -(window_kernel / 2); w <= window_kernel / 2; w++)
            for (int k = -(kernel / 2); k <= kernel / 2; k++) rows[n++] = x.data + i * x.plane + w * x.row + k;
    return n;
}

/* The planes of one phase */
static void phase(const float **rows, Planes x, int inputs, int p) {
    for (int i = 0; i < inputs; i++) rows[i] = x.data + ((ptrdiff_t)i * PHASES + p) * x.plane;
}

static void depthwise(
    Planes x, Planes y, int channels, int window_kernel, int kernel, const float *weights, const float *bias) {
    int count = window_kernel * kernel;
    for (int c = 0; c < channels; c++, weights += count) {
        const float *rows[64];
        Planes one = x;
        one.data += c * x.plane;
        taps(rows, one, 1, window_kernel, kernel);
        for (ptrdiff_t p = 0; p < x.length; p += 2 * LANES) {
            vec a = splat(bias[c]), b = a;
            for (int t = 0; t < count; t++) {
                a += weights[t] * load(rows[t] + p);
                b += weights[t] * load(rows[t] + p + LANES);
            }
            store(y.data + c * y.plane + p, a);
            store(y.data + c * y.plane + p + LANES, b);
        }
    }
}

/* Winograd's F(4, 5), at the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity: four sums of five taps from eight products
   instead of twenty. F(4, 3) leaves the halves out: six products for four sums of three. */
static int points_of(int kernel) { return PHASES + (kernel > 3 ? 5 : 3) - 1; }

/* What goes into a tile of F(4, 5): two bins before it, its four, and two behind. */
static void transform_five(const float *from, ptrdiff_t plane, ptrdiff_t length, float *to, ptrdiff_t apart) {
    for (ptrdiff_t p = 0; p < length; p += LANES) {
        vec d0 = load(from + 2 * plane + p - 1), d1 = load(from + 3 * plane + p - 1);
        vec d2 = load(from + p), d3 = load(from + plane + p), d4 = load(from + 2 * plane + p), d5 = load(from + 3 * plane + p);
        vec d6 = load(from + p + 1), d7 = load(from + plane + p + 1);
        vec even = d2 + d6 - 4.25f * d4, odd = d1 + d5 - 4.25f * d3;
        store(to + p, d0 - d6 + 5.25f * (d4 - d2));
        store(to + apart + p, even + odd);
        store(to + 2 * apart + p, even - odd);
        even = 0.25f * d2 - 1.25f * d4 + d6, odd = 0.5f * d1 - 2.5f * d3 + 2.0f * d5;
        store(to + 3 * apart + p, even + odd);
        store(to + 4 * apart + p, even - odd);
        even = 4.0f * d2 - 5.0f * d4 + d6, odd = 2.0f * d1 - 2.5f * d3 + 0.5f * d5;
        store(to + 5 * apart + p, even + odd);
        store(to + 6 * apart + p, even - odd);
        store(to + 7 * apart + p, d7 - d1 + 5.25f * (d3 - d5));
    }
}

/* And of F(4, 3): one bin before it, its four, and one behind */
static void transform_three(const float *from, ptrdiff_t plane, ptrdiff_t length, float *to, ptrdiff_t apart) {
    for (ptrdiff_t p = 0; p < length; p += LANES) {
        vec d0 = load(from + 3 * plane + p - 1), d1 = load(from + p), d2 = load(from + plane + p);
        vec d3 = load(from + 2 * plane + p), d4 = load(from + 3 * plane + p), d5 = load(from + p + 1);
        vec even = d4 - 4.0f * d2, odd = d3 - 4.0f * d1;
        store(to + p, 4.0f * d0 - 5.0f * d2 + d4);
        store(to + apart + p, even + odd);
        store(to + 2 * apart + p, even - odd);
        even = d4 - d2, odd = 2.0f * (d3 - d1);
        store(to + 3 * apart + p, even + odd);
        store(to + 4 * apart + p, even - odd);
        store(to + 5 * apart + p, 4.0f * d1 - 5.0f * d3 + d5);
    }
}

static void transform(Planes x, Planes y, int inputs, int points) {
    for (int i = 0; i < inputs; i++) {
        const float *from = x.data + (ptrdiff_t)i * PHASES * x.plane;
        float *to = y.data + (ptrdiff_t)i * points * y.plane;
        if (points == MOST_POINTS)
            transform_five(from, x.plane, x.length, to, y.plane);
        else
            transform_three(from, x.plane, x.length, to, y.plane);
    }
}

static inline __attribute__((always_inline)) void finish_tile(
    const float *sums, ptrdiff_t each, int points, int vectors, int outputs, ptrdiff_t at, Planes y, const float *bias,
    const float *mask, ptrdiff_t mask_stride, int activation) {
    for (int o = 0; o < outputs; o++)
        for (int v = 0; v < vectors; v++) {
            const float *m = sums + o * BLOCK + v * LANES;
            vec first = load(m), last = load(m + (points - 1) * each);
            vec a = load(m + each), b = load(m + 2 * each), c = load(m + 3 * each), d = load(m + 4 * each);
            vec ab = a + b, cd = c + d;
            a -= b, c -= d;
            vec sum[PHASES] = {first + ab + cd, a + 2.0f * c, ab + 4.0f * cd, a + 8.0f * c + last};
            if (points == MOST_POINTS) {
                vec e = load(m + 5 * each), f = load(m + 6 * each), ef = e + f;
                e -= f;
                sum[0] += ef, sum[1] += 0.5f * e, sum[2] += 0.25f * ef, sum[3] += 0.125f * e;
            }
            for (int p = 0; p < PHASES; p++) {
                ptrdiff_t to = at + v * LANES;
                vec z = active(sum[p] + bias[o], activation);
                if (mask) z *= load(mask + p * mask_stride + to);
                store(y.data + (o * PHASES + p) * y.plane + to, z);
            }
        }
}

/* Three windows (or one) by `kernel` bins, five or three. `at_points` is room for as many planes of every input, `sums`
   for outputs, rounded up, x points x BLOCK floats; both stay in the cache that a core has for itself. */
static void convolve(
    Planes x, int inputs, int window_kernel, int kernel, const float *weights, int outputs, Planes at_points, float *sums,
    const float **rows, Planes y, const float *bias, const float *mask, ptrdiff_t mask_stride, int activation) {
    int points = points_of(kernel), n = inputs * window_kernel, padded = (int)rounded(outputs, OUTPUTS);
    transform(x, at_points, inputs, points);
    const float **next = rows;
    for (int k = 0; k < points; k++)
        for (int i = 0; i < inputs; i++)
            for (int w = -(window_kernel / 2); w <= window_kernel / 2; w++)
                *next++ = at_points.data + ((ptrdiff_t)i * points + k) * at_points.plane + w * at_points.row;
    ptrdiff_t each = (ptrdiff_t)padded * BLOCK;
    for (ptrdiff_t at = 0; at < x.length;) {
        int vectors = at + BLOCK <= x.length + LANES - 1 ? VECTORS : 1;
        for (int k = 0; k < points; k++)
            for (int first = 0; first < outputs; first += OUTPUTS) {
                const float *w = weights + ((ptrdiff_t)k * padded + first) * n;
                float *tile = sums + k * each + first * BLOCK;
                if (vectors == VECTORS)
                    block(rows + k * n, at, n, w, outputs - first, VECTORS, tile);
                else
                    block(rows + k * n, at, n, w, outputs - first, 1, tile);
            }
        if (activation == GELU && points == MOST_POINTS)
            finish_tile(sums, each, MOST_POINTS, vectors, outputs, at, y, bias, mask, mask_stride, GELU);
        else if (activation == GELU)
            finish_tile(sums, each, MOST_POINTS - 2, vectors, outputs, at, y, bias, mask, mask_stride, GELU);
        else
            finish_tile(sums, each, points, vectors, outputs, at, y, bias, mask, mask_stride, SOFTPLUS);
        at += (ptrdiff_t)vectors * LANES;
    }
}

/* [log(1 + |X|), cos, sin] of a spectrum, turned and normalized: rows [y / sigma, 1] and 1 / sigma, zero where masked.
   `out` has numbers + 2 planes of `stride` floats. */
static void tokens(
    const Network *net, const float *real, const float *imag, const float *usable, float *out, ptrdiff_t stride) {
    int n = net->numbers;
    const float tiny = 1.17549435e-38f;
    for (ptrdiff_t k = 0; k < net->bins; k += LANES) {
        vec re = load(real + k), im = load(imag + k), power = re * re + im * im, z[3];
        ivec empty = power < tiny;
        vec size = larger(power, splat(tiny));
        for (int l = 0; l < LANES; l++) size[l] = sqrtf(size[l]);
        vec over = 1.0f / size;
        z[n - 2] = where(empty, splat(1), re * over);
        z[n - 1] = where(empty, splat(0), im * over);
        if (n == 3) z[0] = logarithm(1.0f + size);
        vec y[3], sum = load(net->floor + k);
        for (int i = 0; i < n; i++) {
            y[i] = load(net->shift + (ptrdiff_t)i * net->bins + k);
            for (int j = 0; j < n; j++) y[i] += net->turn[i * n + j] * z[j];
            sum += y[i] * y[i];
        }
        for (int l = 0; l < LANES; l++) sum[l] = sqrtf(sum[l]);
        vec mask = load(usable + k), inverse = mask / sum;
        for (int i = 0; i < n; i++) store(out + i * stride + k, y[i] * inverse);
        store(out + n * stride + k, mask);
        store(out + (n + 1) * stride + k, inverse);
    }
}

/* C of one window at the raw offsets, into the planes of x. `a` and `b` are what `tokens` made of both channels, with
   `radius` zeros on each side. Per head, C is <u, b> + t (<a, N> + s T): `a` is turned into u, and meets all of its keys,
   while it is in registers. Beyond the band N is read, too, and t is 0. `terms` is numbers + 1. */
static inline __attribute__((always_inline)) void correlation_of(
    const Network *net, const float *a, const float *b, ptrdiff_t stride, float *x, ptrdiff_t plane, int terms) {
    int offsets = 2 * net->radius + 1;
    const float *s = a + terms * stride, *t = b + terms * stride;
    for (int h = 0; h < net->heads; h++) {
        const float *m = net->plain + h * terms * terms;
        const float *l = net->by_query + (ptrdiff_t)h * terms * net->bins, *n = net->by_key + (ptrdiff_t)h * terms * net->bins;
        for (ptrdiff_t k = 0; k < net->bins; k += LANES) {
            vec query[4], turned[4], scale = load(s + k);
            for (int i = 0; i < terms; i++) query[i] = load(a + i * stride + k);
            for (int i = 0; i < terms; i++) {
                turned[i] = scale * load(l + i * net->bins + k);
                for (int j = 0; j < terms; j++) turned[i] += m[j * terms + i] * query[j];
            }
            for (int d = 0; d < offsets; d++) {
                ptrdiff_t key = k + d - net->radius, row = (ptrdiff_t)h * offsets + d;
                vec whole = scale * load(net->by_both + row * net->bins + k), sum = {0};
                for (int i = 0; i < terms; i++) {
                    whole += query[i] * load(n + i * net->bins + key);
                    sum += turned[i] * load(b + i * stride + key);
                }
                store(x + row * plane + k, sum + load(t + key) * whole);
            }
        }
    }
}

static void correlation(
    const Network *net, const float *a, const float *b, ptrdiff_t stride, float *x, ptrdiff_t plane) {
    if (net->numbers == 3)
        correlation_of(net, a, b, stride, x, plane, 4);
    else
        correlation_of(net, a, b, stride, x, plane, 3);
}

typedef struct {
    int tiles, features, spare, fine, coarse;
    ptrdiff_t row, margin, stride, tokens, lags, sums, size;
} Sizes;

static Sizes sizes(const Network *net, int channels, int lags) {
    Sizes z;
    z.tiles = (net->bins + PHASES - 1) / PHASES;
    z.features = net->heads * (2 * net->radius + 1);
    int beyond = net->blocks ? net->block_kernel / 2 : 1; /* tiles that a tap reaches beyond its own */
    z.row = z.tiles + beyond;
    z.margin = rounded(net->window_kernel / 2 * z.row + beyond, 16);
    z.stride = rounded(net->bins + 2 * net->radius + LANES, 16);
    z.spare = 2 * (net->delay_kernel / 2) + net->logit_kernel / 2;
    z.lags = rounded(lags + 2 * z.spare, 16) + BLOCK;
    int c = net->channels, b = net->blocks ? net->block_channels : 0, P = net->maps;
    int inputs = z.features > c ? z.features : c, outputs = c > P ? c : P, terms = net->numbers + 1;
    int points = points_of(net->kernel);
    z.tokens = (terms + 1) * z.stride; /* of one window of one channel */
    z.sums = rounded(outputs, OUTPUTS) * BLOCK * points;
    z.fine = PHASES * (z.features + c + (net->blocks ? c : 0) + P + 1) + points * inputs + 2 * P;
    z.coarse = net->blocks ? 2 * b + c + 1 : 0;
    z.size = planes_size(z.fine + z.coarse, net->windows, z.row, z.margin) + (ptrdiff_t)channels * net->windows * z.tokens
           + z.stride * (1 + z.features) + 64 + z.sums
           + PHASES * z.tiles * (2 * P + 2 * rounded(P, OUTPUTS)) + z.lags * (3 * P + 2 * net->delay_channels + 1);
    return z;
}

/* Where everything is, in the caller's memory */
typedef struct {
    const Network *net;
    Sizes z;
    Planes x, local, gate, mask, points, evidence; /* evidence: of one phase */
    Planes merged, inside, y, up, tile_mask;       /* of the surroundings */
    float *usable;                                 /* (bins), with zeros behind */
    float *tokens;                                 /* (channels, windows, numbers + 2, stride) */
    float *whole;                                  /* C of one window */
    float *sums, *total, *packed;                  /* total: evidence, weighted, over all windows */
    float *steered, *parts, *first, *second, *answer; /* parts: of the real and the imaginary evidence */
    const float **rows;
} Place;

static Place places(
    const Network *net, int channels, int lags, const float *usable, float *memory, const float **rows) {
    Place at = {.net = net, .z = sizes(net, channels, lags), .rows = rows};
    const Sizes *z = &at.z;
    int W = net->windows, c = net->channels, P = net->maps, T = z->tiles;
    float *next = memory;
    at.x = planes(&next, PHASES * z->features, W, z->row, z->margin);
    at.local = planes(&next, PHASES * c, W, z->row, z->margin);
    at.gate = planes(&next, PHASES * P, W, z->row, z->margin);
    at.mask = planes(&next, PHASES, W, z->row, z->margin);
    at.points = planes(&next, points_of(net->kernel) * (z->features > c ? z->features : c), W, z->row, z->margin);
    at.evidence = planes(&next, 2 * P, W, z->row, z->margin);
    if (net->blocks) {
        at.merged = planes(&next, PHASES * c, W, z->row, z->margin);
        at.inside = planes(&next, net->block_channels, W, z->row, z->margin);
        at.y = planes(&next, net->block_channels, W, z->row, z->margin);
        at.up = planes(&next, c, W, z->row, z->margin);
        at.tile_mask = planes(&next, 1, W, z->row, z->margin);
    }
    at.usable = next;
    at.tokens = at.usable + z->stride;
    at.whole = at.tokens + (ptrdiff_t)channels * W * z->tokens;
    at.sums = at.whole + z->features * z->stride;
    at.total = at.sums + z->sums;
    at.packed = at.total + 2 * P * PHASES * T;
    at.steered = at.packed + 2 * rounded(P, OUTPUTS) * PHASES * T;
    at.parts = at.steered + P * z->lags;
    at.first = at.parts + 2 * P * z->lags;
    at.second = at.first + net->delay_channels * z->lags;
    at.answer = at.second + net->delay_channels * z->lags;

    memset(at.usable, 0, sizeof(float) * z->stride);
    memcpy(at.usable, usable, sizeof(float) * net->bins);
    memset(at.mask.data, 0, sizeof(float) * ((PHASES - 1) * at.mask.plane + rounded(at.mask.length, BLOCK)));
    if (net->blocks) memset(at.tile_mask.data, 0, sizeof(float) * rounded(at.tile_mask.length, BLOCK));
    for (int k = 0; k < net->bins; k++)
        if (usable[k] > 0) {
            at.mask.data[k % PHASES * at.mask.plane + k / PHASES] = 1;
            if (net->blocks) at.tile_mask.data[k / PHASES] = 1; /* a tile is usable where any of its bins is */
        }
    for (int w = 1; w < W; w++) { /* the same in all windows */
        for (int p = 0; p < PHASES; p++)
            memcpy(at.mask.data + p * at.mask.plane + w * at.mask.row, at.mask.data + p * at.mask.plane, sizeof(float) * T);
        if (net->blocks) memcpy(at.tile_mask.data + w * at.tile_mask.row, at.tile_mask.data, sizeof(float) * T);
    }
    return at;
}

static float *tokens_of(const Place *at, int channel, int window) {
    return at->tokens + ((ptrdiff_t)channel * at->net->windows + window) * at->z.tokens + at->net->radius;
}

/* Of all channels: whatever pairs they are in, once. Spectra (windows, channels, 2, bins), real and imaginary. */
static void read_frame(const Place *at, const float *spectra, int channels) {
    const Network *net = at->net;
    for (int w = 0; w < net->windows; w++)
        for (int i = 0; i < channels; i++, spectra += 2 * net->bins) {
            float *to = tokens_of(at, i, w);
            tokens(net, spectra, spectra + net->bins, at->usable, to, at->z.stride);
            for (int n = 0; n < net->numbers + 2; n++) /* vectors go beyond the last bin */
                for (ptrdiff_t k = net->bins; k < rounded(net->bins, LANES); k++) to[n * at->z.stride + k] = 0;
        }
}

/* Every fourth row into a plane of its own. All four in one pass: the compiler shuffles whole vectors then. */
static void in_phases(const float *restrict from, int rows, float *restrict to, ptrdiff_t plane) {
    float *restrict to1 = to + plane, *restrict to2 = to + 2 * plane, *restrict to3 = to + 3 * plane;
    int tiles = rows / PHASES;
    for (int t = 0; t < tiles; t++) {
        to[t] = from[PHASES * t];
        to1[t] = from[PHASES * t + 1];
        to2[t] = from[PHASES * t + 2];
        to3[t] = from[PHASES * t + 3];
    }
    for (int r = PHASES * tiles; r < rows; r++) to[r % PHASES * plane + tiles] = from[r];
}

/* C of two channels, in phases */
static void match(const Place *at, int first, int second) {
    const Network *net = at->net;
    const Sizes *z = &at->z;
    for (int w = 0; w < net->windows; w++) {
        correlation(net, tokens_of(at, first, w), tokens_of(at, second, w), z->stride, at->whole, z->stride);
        for (int i = 0; i < z->features; i++) {
            const float *from = at->whole + i * z->stride;
            float *to = at->x.data + (ptrdiff_t)i * PHASES * at->x.plane + w * at->x.row;
            in_phases(from, net->bins, to, at->x.plane);
        }
    }
}

static void surroundings(const Place *at) {
    const Network *net = at->net;
    int c = net->channels, count = net->block_channels, each = (int)rounded(count, OUTPUTS) * count;
    Planes y = at->y;
    const float *mask = at->tile_mask.data;
    int n = taps(at->rows, at->local, PHASES * c, 1, 1); /* four bins as one */
    product(at->rows, n, net->down, count, y.length, y.data, y.plane,
            (Finish){.bias = net->down_bias, .mask = mask, .activation = GELU});
    for (int k = 0; k < net->blocks; k++) {
        depthwise(y, at->inside, count, net->window_kernel, net->block_kernel,
                  net->along + k * count * net->window_kernel * net->block_kernel, net->along_bias + k * count);
        n = taps(at->rows, at->inside, count, 1, 1);
        product(at->rows, n, net->across + (ptrdiff_t)k * each, count, y.length, y.data, y.plane,
                (Finish){.bias = net->across_bias + k * count, .carry = y.data, .carry_stride = y.plane, .mask = mask,
                         .activation = GELU});
    }
    n = taps(at->rows, y, count, 1, 1);
    product(at->rows, n, net->up, c, at->up.length, at->up.data, at->up.plane, (Finish){.bias = net->up_bias});
    for (int p = 0; p < PHASES; p++) {
        phase(at->rows, at->local, c, p);
        product(at->rows, c, net->mix, c, at->local.length, at->merged.data + p * at->merged.plane, PHASES * at->merged.plane,
                (Finish){.bias = net->mix_bias, .add = at->up.data, .add_stride = at->up.plane, .activation = GELU});
    }
}

/* From C to `total` */
static void weigh(const Place *at) {
    const Network *net = at->net;
    int W = net->windows, c = net->channels, P = net->maps, T = at->z.tiles;
    Planes gate = at->gate, evidence = at->evidence;
    convolve(at->x, at->z.features, net->window_kernel, net->kernel, net->local, c, at->points, at->sums, at->rows, at->local,
             net->local_bias, at->mask.data, at->mask.plane, GELU);
    if (net->blocks)
        surroundings(at);
    else
        convolve(at->local, c, net->window_kernel, net->kernel, net->gate, P, at->points, at->sums, at->rows, gate,
                 net->gate_bias, NULL, 0, SOFTPLUS);
    memset(at->total, 0, sizeof(float) * 2 * P * PHASES * T);
    for (int p = 0; p < PHASES; p++) {
        if (net->blocks) {
            phase(at->rows, at->merged, c, p);
            product(at->rows, c, net->gate, P, gate.length, gate.data + p * gate.plane, PHASES * gate.plane,
                    (Finish){.bias = net->gate_bias, .activation = SOFTPLUS});
        }
        phase(at->rows, at->x, at->z.features, p);
        product(at->rows, at->z.features, net->evidence, 2 * P, at->x.length, evidence.data, evidence.plane, (Finish){0});
        for (int m = 0; m < 2 * P; m++)
            for (int w = 0; w < W; w++) {
                const float *g = gate.data + (m / 2 * PHASES + p) * gate.plane + w * gate.row;
                const float *e = evidence.data + m * evidence.plane + w * evidence.row;
                float *to = at->total + (m * PHASES + p) * T;
                for (int t = 0; t < T; t++) to[t] += g[t] * e[t];
            }
    }
}

/* From `total` to logits. A table with fewer columns than there are delays has the upper half of a range around 0: the
   cosines of its other half are the same, and the sines have the other sign. */
static void steer(const Place *at, const float *steering, int columns, int lags, float *logits) {
    const Network *net = at->net;
    const Sizes *z = &at->z;
    int P = net->maps, R = PHASES * z->tiles, padded = (int)rounded(P, OUTPUTS), n;
    ptrdiff_t count = lags + 2 * z->spare;
    memset(at->packed, 0, sizeof(float) * padded * 2 * R);
    for (int part = 0; part < 2; part++) {
        /* in the order of a product's weights: steering is one with the table's rows */
        float *packed = at->packed + (ptrdiff_t)part * padded * R;
        for (int m = 0; m < P; m++)
            for (int k = 0; k < R; k++)
                packed[((ptrdiff_t)(m / OUTPUTS) * R + k) * OUTPUTS + m % OUTPUTS] = at->total[(2 * m + part) * R + k];
        n = 0;
        for (int p = 0; p < PHASES; p++)
            for (int t = 0; t < z->tiles; t++) { /* a tile may end beyond the last bin: there is no evidence */
                int k = PHASES * t + p < net->bins ? PHASES * t + p : 0;
                at->rows[n++] = steering + ((ptrdiff_t)part * net->bins + k) * columns;
            }
        product(at->rows, n, packed, P, columns, at->parts + part * P * z->lags, z->lags, (Finish){0});
    }
    for (int m = 0; m < P; m++) {
        const float *even = at->parts + m * z->lags, *odd = even + P * z->lags;
        float *to = at->steered + m * z->lags, *upper = to + count - columns;
        for (int i = 0; i < columns; i++) upper[i] = even[i] + odd[i];
        if (columns < count)
            for (int i = 0; i < columns; i++) to[columns - 1 - i] = even[i] - odd[i];
    }
    int reach = net->delay_kernel / 2, last = net->logit_kernel / 2;
    Planes s = {at->steered + reach, z->lags, z->lags, count}, h1 = {at->first + reach, z->lags, z->lags, count - 2 * reach};
    Planes h2 = {at->second + last, z->lags, z->lags, h1.length - 2 * reach};
    n = taps(at->rows, s, P, 1, net->delay_kernel);
    product(at->rows, n, net->first, net->delay_channels, h1.length, at->first, z->lags,
            (Finish){.bias = net->first_bias, .activation = GELU});
    n = taps(at->rows, h1, net->delay_channels, 1, net->delay_kernel);
    product(at->rows, n, net->second, net->delay_channels, h2.length, at->second, z->lags,
            (Finish){.bias = net->second_bias, .activation = GELU});
    n = taps(at->rows, h2, net->delay_channels, 1, net->logit_kernel);
    product(at->rows, n, net->last, 1, lags, at->answer, z->lags, (Finish){.bias = net->last_bias});
    memcpy(logits, at->answer, sizeof(float) * lags);
}

static void reliability_of(const Place *at, float *reliability) {
    for (int k = 0; k < at->net->bins; k++) {
        float squares = 0;
        for (int m = 0; m < 2 * at->net->maps; m++) {
            float part = at->net->read[m / 2] * at->total[(m * PHASES + k % PHASES) * at->z.tiles + k / PHASES];
            squares += part * part;
        }
        reliability[k] = sqrtf(squares);
    }
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* Floats of memory that a call needs */
ptrdiff_t JOIN(ENTRY, _memory)(const Network *net, int channels, int lags) { return sizes(net, channels, lags).size; }

int JOIN(ENTRY, _outputs)(void) { return OUTPUTS; }

/* spectra (frames, windows, channels, 2, bins), real and imaginary; pairs (count, 2) of channels; usable (bins) 1 or 0;
   steering (2 bins, columns), see `steer` -> logits (frames, pairs, lags) and reliability (frames, pairs, bins), either of them
   NULL if not wanted.

   `memory` holds zeros at the first call; what must be zero at the next one of the same sizes, this leaves so. `rows`
   has room for as many pointers as a product has inputs. Vectors may read up to BLOCK floats beyond the end of spectra,
   steering and every array of the network, and `radius` before the beginning of `by_key`: numbers, whichever. */
void ENTRY(
    const Network *net, int frames, int channels, int count, const int32_t *pairs, const float *spectra,
    const float *usable, const float *steering, int columns, int lags, float *logits, float *reliability, float *memory,
    const float **rows) {
    Place at = places(net, channels, lags, usable, memory, rows);
    for (int f = 0; f < frames; f++) {
        read_frame(&at, spectra + (ptrdiff_t)f * net->windows * channels * 2 * net->bins, channels);
        for (int i = 0; i < count; i++) {
            ptrdiff_t pair = (ptrdiff_t)f * count + i;
            match(&at, pairs[2 * i], pairs[2 * i + 1]);
            weigh(&at);
            if (reliability) reliability_of(&at, reliability + pair * net->bins);
            if (logits) steer(&at, steering, columns, lags, logits + pair * lags);
        }
    }
}

/* The published network up to its MLP: two convolutions, and the mean over usable bins. Memory and rows as above, for two
   channels and no lags. spectra (frames, 1, 2, 2, bins) -> means (frames, maps) */
void JOIN(ENTRY, _published)(
    const Network *net, int frames, const float *spectra, const float *usable, float *means, float *memory,
    const float **rows) {
    Place at = places(net, 2, 0, usable, memory, rows);
    float bins = 0;
    for (int k = 0; k < net->bins; k++) bins += usable[k];
    for (int f = 0; f < frames; f++) {
        read_frame(&at, spectra + (ptrdiff_t)f * 4 * net->bins, 2);
        match(&at, 0, 1);
        convolve(at.x, at.z.features, 1, net->kernel, net->local, net->channels, at.points, at.sums, rows, at.local, net->local_bias,
                 at.mask.data, at.mask.plane, GELU);
        convolve(at.local, net->channels, 1, net->kernel, net->gate, net->maps, at.points, at.sums, rows, at.gate, net->gate_bias,
                 at.mask.data, at.mask.plane, GELU);
        for (int m = 0; m < net->maps; m++) {
            double total = 0;
            for (int p = 0; p < PHASES; p++)
                for (int t = 0; t < at.z.tiles; t++) total += at.gate.data[(m * PHASES + p) * at.gate.plane + t];
            means[f * net->maps + m] = (float)(total / (bins > 1 ? bins : 1));
        }
    }
}

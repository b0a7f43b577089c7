/* A steered QK-GCC on one core: from the spectra of a frame's windows to logits. `qkgcc.inference.kernel` calls it.

   Everything is a plane of floats along (window, frequency), one after the other in memory. Between the windows, and
   around them, a plane has zeros that convolutions reach into, so that a tap is an offset and nothing else; a mask
   writes the zeros again after each layer. Products are blocks of OUTPUTS planes x VECTORS vectors in registers.

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
    int32_t windows, bins, numbers, heads, radius, pool;              /* the front end */
    int32_t channels, window_kernel, kernel, gate_window_kernel, gate_kernel, maps;
    int32_t blocks, block_channels, coarse, block_window_kernel, block_kernel;
    int32_t delay_channels, delay_kernel, logit_kernel;
    /* folded front end: R (n, n), r (n, bins), floor (bins), M (heads, n + 1, n + 1), L, N (heads, n + 1, bins),
       T (heads, 2 radius + 1, bins) */
    const float *turn, *shift, *floor, *plain, *by_query, *by_key, *by_both;
    /* convolutions: packed weights (groups of OUTPUTS, inputs, OUTPUTS) and biases */
    const float *local, *local_bias, *evidence;
    const float *mix, *mix_bias, *gate, *gate_bias;
    const float *down, *down_bias, *along, *along_bias, *across, *across_bias, *up, *up_bias;
    const float *first, *first_bias, *second, *second_bias, *last, *last_bias;
} Network;

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

/* `vectors` vectors of OUTPUTS planes: sums over inputs, which are wherever `rows` points. The sums are in registers until
   they are written to `tile`: an array that were read in a loop of the compiler's choice might be in memory all along. */
static inline __attribute__((always_inline)) void block(
    const float *const *rows, ptrdiff_t at, int inputs, const float *weights, int vectors, float *tile) {
    vec sums[OUTPUTS][VECTORS];
#pragma GCC unroll 8
    for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[o][v] = splat(0);
    for (int i = 0; i < inputs; i++, weights += OUTPUTS) {
        vec x[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) x[v] = load(rows[i] + at + v * LANES);
#pragma GCC unroll 8
        for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[o][v] += weights[o] * x[v];
    }
#pragma GCC unroll 8
    for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) store(tile + o * BLOCK + v * LANES, sums[o][v]);
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
                block(rows, at, inputs, weights + (ptrdiff_t)first * inputs, VECTORS, tile);
            else
                block(rows, at, inputs, weights + (ptrdiff_t)first * inputs, 1, tile);
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

static ptrdiff_t around(ptrdiff_t row, int window_kernel, int kernel) {
    return rounded((window_kernel / 2) * row + kernel / 2, 16);
}

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

/* `coarse` adjacent rows become rows of planes of their own, as if zeros followed the last */
static inline __attribute__((always_inline)) void split(Planes x, Planes y, int channels, int windows, int rows, int coarse) {
    int whole = rows / coarse, rest = rows % coarse;
    for (int i = 0; i < channels; i++)
        for (int w = 0; w < windows; w++) {
            const float *from = x.data + i * x.plane + w * x.row;
            for (int k = 0; k < coarse; k++) {
                float *to = y.data + (i * coarse + k) * y.plane + w * y.row;
                for (int r = 0; r < whole; r++) to[r] = from[r * coarse + k];
                if (rest) to[whole] = k < rest ? from[whole * coarse + k] : 0;
            }
        }
}

/* Every row `coarse` times */
static inline __attribute__((always_inline)) void repeat(Planes x, Planes y, int channels, int windows, int rows, int coarse) {
    int whole = rows / coarse, rest = rows % coarse;
    for (int i = 0; i < channels; i++)
        for (int w = 0; w < windows; w++) {
            const float *from = x.data + i * x.plane + w * x.row;
            float *to = y.data + i * y.plane + w * y.row;
            for (int r = 0; r < whole; r++)
                for (int k = 0; k < coarse; k++) to[r * coarse + k] = from[r];
            for (int k = 0; k < rest; k++) to[whole * coarse + k] = from[whole];
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
   `radius` zeros on each side; `scratch` has numbers + 1 planes more, twice. */
static void correlation(
    const Network *net, const float *a, const float *b, float *scratch, ptrdiff_t stride, float *x, ptrdiff_t plane) {
    int terms = net->numbers + 1, offsets = 2 * net->radius + 1;
    float *u = scratch, *v = scratch + terms * stride;
    const float *s = a + terms * stride, *t = b + terms * stride;
    for (int h = 0; h < net->heads; h++) {
        const float *m = net->plain + h * terms * terms;
        for (int i = 0; i < terms; i++) {
            const float *l = net->by_query + (ptrdiff_t)(h * terms + i) * net->bins;
            const float *n = net->by_key + (ptrdiff_t)(h * terms + i) * net->bins;
            for (ptrdiff_t k = 0; k < net->bins; k += LANES) {
                vec sum = load(s + k) * load(l + k);
                for (int j = 0; j < terms; j++) sum += m[j * terms + i] * load(a + j * stride + k);
                store(u + i * stride + k, sum);
                store(v + i * stride + k, load(t + k) * load(n + k));
            }
            for (ptrdiff_t k = net->bins; k < rounded(net->bins, LANES); k++) v[i * stride + k] = 0;
        }
        for (int d = 0; d < offsets; d++) {
            const float *table = net->by_both + (ptrdiff_t)(h * offsets + d) * net->bins;
            float *out = x + (ptrdiff_t)(h * offsets + d) * plane;
            ptrdiff_t shift = d - net->radius;
            for (ptrdiff_t k = 0; k < net->bins; k += LANES) {
                vec sum = load(s + k) * load(t + k + shift) * load(table + k);
                for (int i = 0; i < terms; i++) {
                    sum += load(u + i * stride + k) * load(b + i * stride + k + shift);
                    sum += load(a + i * stride + k) * load(v + i * stride + k + shift);
                }
                store(out + k, sum);
            }
        }
    }
}

static void fill_mask(float *mask, const float *usable, int windows, int rows, ptrdiff_t row, ptrdiff_t size) {
    memset(mask, 0, sizeof(float) * size);
    for (int w = 0; w < windows; w++) memcpy(mask + w * row, usable, sizeof(float) * rows);
}

typedef struct {
    int rows, coarse_rows, features, spare, parts;
    ptrdiff_t row, coarse_row, margin, coarse_margin, stride, wide, lags, size;
} Sizes;

static Sizes sizes(const Network *net, int lags) {
    Sizes z;
    z.rows = (net->bins + net->pool - 1) / net->pool;
    z.features = net->heads * (2 * net->radius + 1);
    int kernel = net->kernel > net->gate_kernel ? net->kernel : net->gate_kernel;
    int window_kernel = net->window_kernel > net->gate_window_kernel ? net->window_kernel : net->gate_window_kernel;
    z.row = z.rows + kernel / 2;
    z.margin = around(z.row, window_kernel, kernel);
    z.coarse_rows = net->blocks ? (z.rows + net->coarse - 1) / net->coarse : 0;
    z.coarse_row = net->blocks ? z.coarse_rows + net->block_kernel / 2 : 0;
    z.coarse_margin = net->blocks ? around(z.coarse_row, net->block_window_kernel, net->block_kernel) : 0;
    z.stride = rounded(net->bins + 2 * net->radius + LANES, 16);
    z.spare = 2 * (net->delay_kernel / 2) + net->logit_kernel / 2;
    z.lags = rounded(lags + 2 * z.spare, 16) + BLOCK;
    int c = net->channels, b = net->block_channels;
    int terms = net->numbers + 1;
    z.wide = rounded(z.rows, 16) + BLOCK;
    z.parts = c * net->coarse > b ? c * net->coarse : b;
    int fine = z.features + c + (net->blocks ? c : 0) + 1;
    z.size = planes_size(fine, net->windows, z.row, z.margin) + z.stride * (4 * terms + 4) + 64
           + (net->pool > 1 ? z.features * z.stride : 0) + 5 * net->maps * z.wide
           + rounded(net->maps, OUTPUTS) * 2 * z.rows + z.lags * (net->maps + 2 * net->delay_channels + 1);
    if (net->blocks)
        z.size += planes_size(z.parts + b + c + 1, net->windows, z.coarse_row, z.coarse_margin);
    return z;
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* Floats of memory that a call needs */
ptrdiff_t JOIN(ENTRY, _memory)(const Network *net, int lags) { return sizes(net, lags).size; }

int JOIN(ENTRY, _outputs)(void) { return OUTPUTS; }

/* spectra (frames, windows, 2, 2, bins) real and imaginary of both channels; usable (bins) 1 or 0; steering
   (2 rows, lags + 2 spare) -> logits (frames, lags) and reliability (frames, rows), either of them NULL if not wanted.

   `memory` holds zeros at the first call; what must be zero at the next one of the same sizes, this leaves so. `rows`
   has room for as many pointers as a product has inputs. Vectors may read up to BLOCK floats beyond the end of spectra,
   steering and every array of the network. */
void ENTRY(
    const Network *net, int frames, const float *spectra, const float *usable, const float *steering, int lags,
    float *logits, float *reliability, float *memory, const float **rows) {
    Sizes z = sizes(net, lags);
    int W = net->windows, c = net->channels, P = net->maps, terms = net->numbers + 1;
    float *next = memory;
    Planes x = planes(&next, z.features, W, z.row, z.margin), local = planes(&next, c, W, z.row, z.margin);
    Planes mask = planes(&next, 1, W, z.row, z.margin), merged = {0};
    Planes parts = {0}, y = {0}, up = {0}, coarse_mask = {0};
    if (net->blocks) {
        merged = planes(&next, c, W, z.row, z.margin);
        parts = planes(&next, z.parts, W, z.coarse_row, z.coarse_margin);
        y = planes(&next, net->block_channels, W, z.coarse_row, z.coarse_margin);
        up = planes(&next, c, W, z.coarse_row, z.coarse_margin);
        coarse_mask = planes(&next, 1, W, z.coarse_row, z.coarse_margin);
    }
    float *padded = next; /* usable, and usable rows, with zeros behind */
    next += 2 * z.stride;
    float *a = next, *b = a + (terms + 1) * z.stride, *scratch = b + (terms + 1) * z.stride;
    next = scratch + 2 * terms * z.stride;
    float *whole = next; /* C before it is pooled */
    if (net->pool > 1) next += z.features * z.stride;
    float *gate = next, *evidence = gate + P * z.wide; /* of one window */
    float *total = evidence + 2 * P * z.wide;          /* evidence, weighted, over all windows */
    float *sum = total + 2 * P * z.wide;
    next = sum + rounded(P, OUTPUTS) * 2 * z.rows;
    float *steered = next, *d1 = steered + P * z.lags, *d2 = d1 + net->delay_channels * z.lags;
    float *answer = d2 + net->delay_channels * z.lags;

    memset(padded, 0, sizeof(float) * 2 * z.stride);
    memcpy(padded, usable, sizeof(float) * net->bins);
    float *usable_rows = padded + z.stride;
    for (int k = 0; k < net->bins; k++)
        if (usable[k] > usable_rows[k / net->pool]) usable_rows[k / net->pool] = usable[k];
    fill_mask(mask.data, usable_rows, W, z.rows, z.row, rounded(mask.length, BLOCK));
    if (net->blocks) {
        float *few = scratch;
        memset(few, 0, sizeof(float) * z.coarse_rows);
        for (int k = 0; k < z.rows; k++)
            if (usable_rows[k] > few[k / net->coarse]) few[k / net->coarse] = usable_rows[k];
        fill_mask(coarse_mask.data, few, W, z.coarse_rows, z.coarse_row, rounded(coarse_mask.length, BLOCK));
    }
    a += net->radius, b += net->radius, scratch += net->radius;

    for (int f = 0; f < frames; f++) {
        for (int w = 0; w < W; w++) {
            const float *at = spectra + ((ptrdiff_t)f * W + w) * 4 * net->bins;
            tokens(net, at, at + net->bins, padded, a, z.stride);
            tokens(net, at + 2 * net->bins, at + 3 * net->bins, padded, b, z.stride);
            for (int i = 0; i <= terms; i++) /* vectors go beyond the last bin */
                for (ptrdiff_t k = net->bins; k < rounded(net->bins, LANES); k++) a[i * z.stride + k] = b[i * z.stride + k] = 0;
            if (net->pool == 1) {
                correlation(net, a, b, scratch, z.stride, x.data + w * x.row, x.plane);
                continue;
            }
            correlation(net, a, b, scratch, z.stride, whole, z.stride);
            for (int i = 0; i < z.features; i++)
                for (int r = 0; r < z.rows; r++) {
                    float total = 0;
                    for (int k = r * net->pool; k < (r + 1) * net->pool && k < net->bins; k++) total += whole[i * z.stride + k];
                    x.data[i * x.plane + w * x.row + r] = total / (float)net->pool;
                }
        }
        /* vectors of a window have run into the zeros behind it */
        for (int i = 0; i < z.features; i++)
            for (int w = 0; w < W; w++)
                for (ptrdiff_t k = z.rows; k < z.row + (w == W - 1 ? LANES : 0); k++) x.data[i * x.plane + w * x.row + k] = 0;

        int n = taps(rows, x, z.features, net->window_kernel, net->kernel);
        product(rows, n, net->local, c, x.length, local.data, local.plane,
                (Finish){.bias = net->local_bias, .mask = mask.data, .activation = GELU});
        Planes seen = local;
        if (net->blocks) {
            if (net->coarse == 4)
                split(local, parts, c, W, z.rows, 4);
            else
                split(local, parts, c, W, z.rows, net->coarse);
            n = taps(rows, parts, c * net->coarse, 1, 1);
            product(rows, n, net->down, net->block_channels, y.length, y.data, y.plane,
                    (Finish){.bias = net->down_bias, .mask = coarse_mask.data, .activation = GELU});
            int count = net->block_channels, each = rounded(count, OUTPUTS) * count;
            for (int k = 0; k < net->blocks; k++) {
                depthwise(y, parts, count, net->block_window_kernel, net->block_kernel,
                          net->along + k * count * net->block_window_kernel * net->block_kernel,
                          net->along_bias + k * count);
                n = taps(rows, parts, count, 1, 1);
                product(rows, n, net->across + (ptrdiff_t)k * each, count, y.length, y.data, y.plane,
                        (Finish){.bias = net->across_bias + k * count, .carry = y.data, .carry_stride = y.plane,
                                 .mask = coarse_mask.data, .activation = GELU});
            }
            n = taps(rows, y, count, 1, 1);
            product(rows, n, net->up, c, up.length, up.data, up.plane, (Finish){.bias = net->up_bias});
            if (net->coarse == 4)
                repeat(up, merged, c, W, z.rows, 4);
            else
                repeat(up, merged, c, W, z.rows, net->coarse);
            n = taps(rows, local, c, 1, 1);
            product(rows, n, net->mix, c, local.length, merged.data, merged.plane,
                    (Finish){.bias = net->mix_bias, .add = merged.data, .add_stride = merged.plane, .activation = GELU});
            seen = merged;
        }
        /* window by window: what one has is still in the cache when it is weighted */
        memset(total, 0, sizeof(float) * 2 * P * z.wide);
        for (int w = 0; w < W; w++) {
            Planes here = seen;
            here.data += w * here.row;
            n = taps(rows, here, c, net->gate_window_kernel, net->gate_kernel);
            product(rows, n, net->gate, P, z.rows, gate, z.wide, (Finish){.bias = net->gate_bias, .activation = SOFTPLUS});
            here = x;
            here.data += w * here.row;
            n = taps(rows, here, z.features, 1, 1);
            product(rows, n, net->evidence, 2 * P, z.rows, evidence, z.wide, (Finish){0});
            for (int p = 0; p < 2 * P; p++)
                for (int k = 0; k < z.rows; k++)
                    total[p * z.wide + k] += gate[p / 2 * z.wide + k] * evidence[p * z.wide + k];
        }
        if (reliability)
            for (int k = 0; k < z.rows; k++) {
                float squares = 0;
                for (int p = 0; p < 2 * P; p++) squares += total[p * z.wide + k] * total[p * z.wide + k];
                reliability[(ptrdiff_t)f * z.rows + k] = sqrtf(squares);
            }
        if (!logits) continue;
        ptrdiff_t count = lags + 2 * z.spare;
        /* in the order of a product's weights: steering is one with the table's rows */
        memset(sum, 0, sizeof(float) * rounded(P, OUTPUTS) * 2 * z.rows);
        for (int p = 0; p < 2 * P; p++) {
            float *to = sum + (ptrdiff_t)(p / 2 / OUTPUTS * 2 + p % 2) * z.rows * OUTPUTS + p / 2 % OUTPUTS;
            for (int k = 0; k < z.rows; k++) to[k * OUTPUTS] = total[p * z.wide + k];
        }
        for (n = 0; n < 2 * z.rows; n++) rows[n] = steering + n * count;
        product(rows, n, sum, P, count, steered, z.lags, (Finish){0});
        Planes s = {steered, z.lags, z.lags, count}, h1 = {d1, z.lags, z.lags, count - 2 * (net->delay_kernel / 2)};
        Planes h2 = {d2, z.lags, z.lags, h1.length - 2 * (net->delay_kernel / 2)};
        s.data += net->delay_kernel / 2, h1.data += net->delay_kernel / 2, h2.data += net->logit_kernel / 2;
        n = taps(rows, s, P, 1, net->delay_kernel);
        product(rows, n, net->first, net->delay_channels, h1.length, h1.data - net->delay_kernel / 2, z.lags,
                (Finish){.bias = net->first_bias, .activation = GELU});
        n = taps(rows, h1, net->delay_channels, 1, net->delay_kernel);
        product(rows, n, net->second, net->delay_channels, h2.length, h2.data - net->logit_kernel / 2, z.lags,
                (Finish){.bias = net->second_bias, .activation = GELU});
        n = taps(rows, h2, net->delay_channels, 1, net->logit_kernel);
        product(rows, n, net->last, 1, lags, answer, z.lags, (Finish){.bias = net->last_bias});
        memcpy(logits + (ptrdiff_t)f * lags, answer, sizeof(float) * lags);
    }
}

/* Runs the kernel once, for a processor that Python is not there for: reads what `test_aarch64.py` wrote, calls the
   kernel's entry, writes what it gave. The kernel's sources are included, as the package compiles them.

   input:  int32 outputs, what (0 logits, 1 reliability, 2 means of the published network), frames, channels, pairs,
           columns, lags, results, pointers; the numbers of a Network; each of its arrays, then spectra, usable and
           steering, as int32 length and floats; int32 pairs (count, 2)
   output: `results` floats */

#include "dispatch.c"
#include "steered.c"
#include <stdio.h>
#include <stdlib.h>

static FILE *input;

static void get(void *to, size_t bytes) {
    if (bytes && fread(to, bytes, 1, input) != 1) {
        fprintf(stderr, "the input is cut short\n");
        exit(1);
    }
}

static int number(void) {
    int32_t n;
    get(&n, sizeof n);
    return n;
}

/* Floats with `around` zeros before them. Off the alignment of vectors by a float, as NumPy's may be. */
static float *floats(int around) {
    int count = number();
    float *all = calloc((size_t)count + 2 * around + 1, sizeof(float));
    get(all + around + 1, sizeof(float) * (size_t)count);
    return all + around + 1;
}

int main(int count, char **names) {
    if (count != 3 || !(input = fopen(names[1], "rb"))) return 2;
    if (strcmp(qkgcc_entry(), "qkgcc_steered")) return 3;
    if (number() != qkgcc_steered_outputs()) return 4;
    int what = number(), frames = number(), channels = number(), pair_count = number(), columns = number();
    int lags = number(), results = number(), pointers = number();
    Network net;
    int32_t *numbers = (int32_t *)&net;
    size_t known = offsetof(Network, logit_kernel) / sizeof(int32_t) + 1; /* before the pointers there may be a gap */
    get(numbers, known * sizeof(int32_t));
    const float **arrays = (const float **)&net.turn;
    for (size_t i = 0; i < (sizeof net - offsetof(Network, turn)) / sizeof *arrays; i++) arrays[i] = floats(net.radius);
    const float *spectra = floats(0), *usable = floats(0), *steering = floats(0);
    int32_t *pairs = calloc((size_t)pair_count, 2 * sizeof *pairs);
    get(pairs, sizeof *pairs * 2 * (size_t)pair_count);
    float *memory = calloc((size_t)qkgcc_steered_memory(&net, channels, lags), sizeof *memory);
    const float **rows = calloc((size_t)pointers, sizeof *rows);
    float *found = calloc((size_t)results, sizeof *found);
    for (int again = 0; again < 2; again++) /* the second call finds the first one's memory */
        if (what == 2)
            qkgcc_steered_published(&net, frames, spectra, usable, found, memory, rows);
        else
            qkgcc_steered(&net, frames, channels, pair_count, pairs, spectra, usable, steering, columns, lags,
                          what == 0 ? found : NULL, what == 1 ? found : NULL, memory, rows);
    FILE *output = fopen(names[2], "wb");
    return !output || fwrite(found, sizeof *found, (size_t)results, output) != (size_t)results || fclose(output);
}

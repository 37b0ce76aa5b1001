/* Resizing, which Python's libraries do too slowly. It works on memory that the caller owns, knows nothing of
   Python, and is called without its lock. native.py has what it promises. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "resize.h"

#ifdef STAGER_AVX2
#include <immintrin.h>
#endif

/* One binary for all: the loader takes the version that the CPU can run. */
#if defined(STAGER_AVX2) && defined(__GLIBC__)
#define FOR_EACH_CPU __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

/* Antialiased bilinear resizing of RGB, in Pillow's arithmetic: weights of 22 bits, eight bits between the
   passes. Weights are not negative and add up to one, give or take the rounding: no sum leaves 0 to 255. */

int stager_weigh_axis(Axis *axis, int64_t inputs, int64_t all_outputs, int64_t begin, int64_t outputs)
{
    double scale = (double)inputs / (double)all_outputs, support = scale < 1.0 ? 1.0 : scale;
    axis->outputs = outputs;
    axis->taps = ((int64_t)ceil(support) * 2 + 1 + TAPS - 1) / TAPS * TAPS;
    axis->output = calloc((size_t)outputs, sizeof(Output));
    axis->weights = calloc((size_t)(outputs * axis->taps), sizeof(int32_t));
    double *shares = malloc((size_t)axis->taps * sizeof(double));
    if (!axis->output || !axis->weights || !shares) {
        free(shares);
        return -1;
    }
    for (int64_t i = 0; i < outputs; i++) {
        double centre = ((double)(begin + i) + 0.5) * scale, sum = 0.0;
        int64_t first = (int64_t)(centre - support + 0.5), end = (int64_t)(centre + support + 0.5);
        first = first < 0 ? 0 : first;
        end = end > inputs ? inputs : end;
        Output *output = &axis->output[i];
        *output = (Output){first, end - first, axis->weights + i * axis->taps};
        for (int64_t k = 0; k < output->count; k++) {
            double distance = fabs(((double)(first + k) - centre + 0.5) * (1.0 / support));
            shares[k] = distance < 1.0 ? 1.0 - distance : 0.0;
            sum += shares[k];
        }
        for (int64_t k = 0; k < output->count; k++)
            output->weights[k] = (int32_t)(0.5 + shares[k] / sum * (1 << WEIGHT_BITS));
    }
    free(shares);
    return 0;
}

/* Make the part of the inputs that is needed all there is: where it begins, and how long it is. The axis is ready
   for the passes then. Returns -1 if there is no memory. */
int stager_take_part(Axis *axis, int64_t *begin, int64_t *length)
{
    Output *last = &axis->output[axis->outputs - 1];
    *begin = axis->output[0].first;
    *length = last->first + last->count - *begin;
    for (int64_t i = 0; i < axis->outputs; i++)
        axis->output[i].first -= *begin;
#ifdef STAGER_VNNI
    return stager_make_quads(axis);
#else
    return 0;
#endif
}

void stager_forget_axis(Axis *axis)
{
    free(axis->output);
    free(axis->weights);
    free(axis->quads);
}

#ifdef STAGER_AVX2
/* Add up to TAPS pixels of two rows, each by its weight. `pixels`: 16 bytes of each row. */
__attribute__((target("avx2"))) static inline __m256i add_pixels(__m256i sums, __m256i pixels,
                                                                  const int32_t *weights)
{
    for (int k = 0; k < TAPS; k++) {
        int32_t at = k * CHANNELS; /* its bytes, as the lowest of four 32-bit numbers; the fourth is no channel */
        __m256i bytes = _mm256_set1_epi32((int32_t)0xffffff00);
        __m256i spread = _mm256_or_si256(bytes, _mm256_setr_epi32(at, at + 1, at + 2, at, at, at + 1, at + 2, at));
        __m256i pixel = _mm256_shuffle_epi8(pixels, spread);
        sums = _mm256_add_epi32(sums, _mm256_mullo_epi32(pixel, _mm256_set1_epi32(weights[k])));
    }
    return sums;
}

/* As stager_pass_across below, two rows at a time; the last of an odd number is done twice. A load begins at
   a pixel that is needed, and has 16 bytes. */
__attribute__((target("avx2"))) static void pass_across_avx2(const Axis *axis, const uint8_t *source,
                                                             int64_t stride, int64_t rows, uint8_t *out,
                                                             int64_t out_stride)
{
    const __m256i gather = _mm256_setr_epi8(0, 4, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, /**/
                                            0, 4, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    for (int64_t y = 0; y < rows; y += 2) {
        int64_t next = y + 1 < rows ? y + 1 : y;
        const uint8_t *rows_of[2] = {source + y * stride, source + next * stride};
        uint8_t *outs_of[2] = {out + y * out_stride, out + next * out_stride};
        for (int64_t i = 0; i < axis->outputs; i++) {
            const Output *output = &axis->output[i];
            __m256i sums = _mm256_set1_epi32(HALF);
            for (int64_t k = 0; k < output->count; k += TAPS) {
                int64_t at = (output->first + k) * CHANNELS;
                __m128i one = _mm_loadu_si128((const __m128i *)(rows_of[0] + at));
                __m128i other = _mm_loadu_si128((const __m128i *)(rows_of[1] + at));
                sums = add_pixels(sums, _mm256_set_m128i(other, one), output->weights + k);
            }
            __m256i made = _mm256_shuffle_epi8(_mm256_srai_epi32(sums, WEIGHT_BITS), gather);
            int32_t bytes[2] = {_mm_cvtsi128_si32(_mm256_castsi256_si128(made)),
                                _mm_cvtsi128_si32(_mm256_extracti128_si256(made, 1))};
            /* Four bytes are written faster than three; the fourth is the next pixel's, but for the last one. */
            if (i + 1 < axis->outputs) {
                memcpy(outs_of[0] + i * CHANNELS, &bytes[0], sizeof bytes[0]);
                memcpy(outs_of[1] + i * CHANNELS, &bytes[1], sizeof bytes[1]);
            } else {
                memcpy(outs_of[0] + i * CHANNELS, &bytes[0], CHANNELS);
                memcpy(outs_of[1] + i * CHANNELS, &bytes[1], CHANNELS);
            }
        }
    }
}
#endif

void stager_pass_across(const Axis *axis, const uint8_t *source, int64_t stride, int64_t rows, int has_slack,
                        uint8_t *out, int64_t out_stride)
{
#ifdef STAGER_VNNI
    if (has_slack && axis->quads) {
        stager_pass_across_vnni(axis, source, stride, rows, out, out_stride);
        return;
    }
#endif
#ifdef STAGER_AVX2
    if (has_slack && __builtin_cpu_supports("avx2")) {
        pass_across_avx2(axis, source, stride, rows, out, out_stride);
        return;
    }
#else
    (void)has_slack;
#endif
    for (int64_t y = 0; y < rows; y++, source += stride, out += out_stride)
        for (int64_t i = 0; i < axis->outputs; i++) {
            const Output *output = &axis->output[i];
            const uint8_t *pixel = source + output->first * CHANNELS;
            int32_t sums[CHANNELS] = {HALF, HALF, HALF};
            for (int64_t k = 0; k < output->count; k++, pixel += CHANNELS)
                for (int c = 0; c < CHANNELS; c++)
                    sums[c] += pixel[c] * output->weights[k];
            for (int c = 0; c < CHANNELS; c++)
                out[i * CHANNELS + c] = (uint8_t)(sums[c] >> WEIGHT_BITS);
        }
}

FOR_EACH_CPU
static void pass_down(const Axis *axis, const uint8_t *source, int64_t stride, int64_t bytes, int32_t *sums,
                      uint8_t *out, int64_t out_stride)
{
    for (int64_t i = 0; i < axis->outputs; i++, out += out_stride) {
        const Output *output = &axis->output[i];
        const uint8_t *row = source + output->first * stride;
        for (int64_t x = 0; x < bytes; x++)
            sums[x] = HALF;
        for (int64_t k = 0; k < output->count; k++, row += stride) {
            int32_t weight = output->weights[k];
            for (int64_t x = 0; x < bytes; x++)
                sums[x] += row[x] * weight;
        }
        for (int64_t x = 0; x < bytes; x++)
            out[x] = (uint8_t)(sums[x] >> WEIGHT_BITS);
    }
}

/* `sums` has room for a row of `bytes`. */
void stager_pass_down(const Axis *axis, const uint8_t *source, int64_t stride, int64_t bytes, int32_t *sums,
                      uint8_t *out, int64_t out_stride)
{
#ifdef STAGER_VNNI
    if (axis->quads) {
        stager_pass_down_vnni(axis, source, stride, bytes, out, out_stride);
        return;
    }
#endif
    pass_down(axis, source, stride, bytes, sums, out, out_stride);
}

/* Resize an image of `height` x `width` to `to_height` x `to_width` and put the window of it into `out`.
   Return 0, or -1 if there is no memory. */
int stager_resize(const uint8_t *source, int64_t height, int64_t width, int64_t to_height, int64_t to_width,
                  int64_t top, int64_t left, int64_t window_height, int64_t window_width, int64_t is_down_first,
                  uint8_t *out)
{
    Axis down = {0}, across = {0};
    uint8_t *middle = NULL, *last = NULL;
    int32_t *sums = NULL;
    int result = -1;
    int64_t first_row, first_column, rows, columns;
    if (stager_weigh_axis(&down, height, to_height, top, window_height) ||
        stager_weigh_axis(&across, width, to_width, left, window_width) ||
        stager_take_part(&down, &first_row, &rows) || stager_take_part(&across, &first_column, &columns))
        goto done;

    int64_t stride = width * CHANNELS, out_stride = window_width * CHANNELS;
    const uint8_t *part = source + first_row * stride + first_column * CHANNELS;
    int64_t part_stride = columns * CHANNELS; /* of what the window needs of a row */
    middle = malloc((size_t)((is_down_first ? window_height * part_stride : rows * out_stride) + SLACK));
    last = malloc((size_t)(part_stride + SLACK));
    sums = malloc((size_t)(part_stride > out_stride ? part_stride : out_stride) * sizeof(int32_t));
    if (!middle || !last || !sums)
        goto done;
    if (is_down_first) {
        stager_pass_down(&down, part, stride, part_stride, sums, middle, part_stride);
        stager_pass_across(&across, middle, part_stride, window_height, 1, out, out_stride);
    } else {
        /* Behind each row is the next, but there may be nothing behind the last: it is read from a copy. */
        stager_pass_across(&across, part, stride, rows - 1, stride >= SLACK, middle, out_stride);
        memcpy(last, part + (rows - 1) * stride, (size_t)part_stride);
        stager_pass_across(&across, last, 0, 1, 1, middle + (rows - 1) * out_stride, 0);
        stager_pass_down(&down, middle, out_stride, out_stride, sums, out, out_stride);
    }
    result = 0;

done:
    free(middle);
    free(last);
    free(sums);
    stager_forget_axis(&down);
    stager_forget_axis(&across);
    return result;
}

/* What of its code this CPU can run: 2 with AVX-512 VNNI, 1 with AVX2, 0 with neither. */
int stager_cpu(void)
{
#ifdef STAGER_VNNI
    if (stager_has_vnni())
        return 2;
#endif
#ifdef STAGER_AVX2
    if (__builtin_cpu_supports("avx2"))
        return 1;
#endif
    return 0;
}

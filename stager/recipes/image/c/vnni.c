/* The two passes of a resize on CPUs that multiply bytes (AVX-512 VNNI: AMD since Zen 4, Intel since Ice Lake).
   One instruction adds up four bytes, each by a weight of eight bits, 16 times over. A weight of 22 bits is
   three such digits, so the sums are those of native.c, to the last bit. */

#include <stdlib.h>
#include <string.h>

#include "resize.h"

#ifdef STAGER_VNNI
#include <immintrin.h>

#define FOR_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define LANES 4  /* outputs that are made together, in 16 bytes of a register each */
#define QUADS_BYTES_MOST (1 << 20) /* beyond that they fit no CPU's cache: 16 bytes for each weight of a long line */
#define DIGITS 3 /* of a weight, the lowest first, from -128 to 127 */

struct Quad {
    int32_t first_byte[LANES]; /* of the inputs that are weighed, from that of the axis */
    int32_t unused[12];        /* what follows begins at 64 bytes */
    int8_t digits[DIGITS][LANES][4][TAPS]; /* the same for all channels, and for a fourth that is none */
};

static void set_digits(Quad *quad, int lane, const int32_t *weights)
{
    for (int k = 0; k < TAPS; k++) {
        int32_t left = weights[k];
        for (int digit = 0; digit < DIGITS; digit++) {
            int8_t low = (int8_t)left;
            for (int channel = 0; channel < 4; channel++)
                quad->digits[digit][lane][channel][k] = low;
            left = (left - low) >> 8;
        }
    }
}

int stager_has_vnni(void)
{
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
}

/* Have ready what the passes below need, if this CPU can run them. Returns -1 if there is no memory. */
int stager_make_quads(Axis *axis)
{
    if (!stager_has_vnni())
        return 0;
    int64_t quads = (axis->outputs + LANES - 1) / LANES, groups = 0;
    for (int64_t i = 0; i < axis->outputs; i++) {
        int64_t needed = (axis->output[i].count + TAPS - 1) / TAPS;
        groups = needed > groups ? needed : groups;
    }
    axis->groups = groups;
    size_t bytes = (size_t)(quads * groups) * sizeof(Quad);
    if (bytes > QUADS_BYTES_MOST)
        return 0;
    axis->quads = aligned_alloc(sizeof(__m512i), bytes);
    if (!axis->quads)
        return -1;
    memset(axis->quads, 0, bytes);
    for (int64_t i = 0; i < axis->outputs; i++)
        for (int64_t group = 0; group < groups; group++) {
            Quad *quad = &axis->quads[i / LANES * groups + group];
            const Output *output = &axis->output[i];
            if (group * TAPS < output->count) { /* or else it weighs what the axis begins with, by nothing */
                quad->first_byte[i % LANES] = (int32_t)((output->first + group * TAPS) * CHANNELS);
                set_digits(quad, (int)(i % LANES), output->weights + group * TAPS);
            }
        }
    return 0;
}

typedef struct {
    __m512i of[DIGITS];
} Sums;

FOR_VNNI static inline Sums no_sums(void)
{
    return (Sums){{_mm512_set1_epi32(HALF), _mm512_setzero_si512(), _mm512_setzero_si512()}};
}

/* 16 outputs, as 32-bit numbers. */
FOR_VNNI static inline __m512i outputs_of(Sums sums)
{
    __m512i high = _mm512_add_epi32(sums.of[1], _mm512_slli_epi32(sums.of[2], 8));
    return _mm512_srai_epi32(_mm512_add_epi32(sums.of[0], _mm512_slli_epi32(high, 8)), WEIGHT_BITS);
}

/* As stager_pass_across, four outputs of a row at a time. A load begins at a pixel that is needed, or at that of
   the axis, and has 16 bytes. */
FOR_VNNI void stager_pass_across_vnni(const Axis *axis, const uint8_t *source, int64_t stride, int64_t rows,
                                      uint8_t *out, int64_t out_stride)
{
    const __m512i by_channel = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1));
    const __m128i without_fourth = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (int64_t y = 0; y < rows; y++, source += stride, out += out_stride) {
        const Quad *quad = axis->quads;
        for (int64_t i = 0; i < axis->outputs; i += LANES) {
            Sums sums = no_sums();
            for (int64_t group = 0; group < axis->groups; group++, quad++) {
                __m512i pixels = _mm512_setzero_si512();
#define TAKE(lane) \
    pixels = _mm512_inserti32x4(pixels, _mm_loadu_si128((const __m128i *)(source + quad->first_byte[lane])), lane)
                TAKE(0);
                TAKE(1);
                TAKE(2);
                TAKE(3);
                pixels = _mm512_shuffle_epi8(pixels, by_channel);
                for (int digit = 0; digit < DIGITS; digit++)
                    sums.of[digit] = _mm512_dpbusd_epi32(sums.of[digit], pixels,
                                                         _mm512_load_si512(quad->digits[digit]));
            }
            __m128i made = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(outputs_of(sums)), without_fourth);
            int64_t left = axis->outputs - i;
            __mmask16 bytes = (__mmask16)((1u << (left < LANES ? left : LANES) * CHANNELS) - 1);
            _mm_mask_storeu_epi8(out + i * CHANNELS, bytes, made);
        }
    }
}

/* As stager_pass_down, 64 bytes of a row at a time: of four rows, the four bytes of a column are put together. */
FOR_VNNI void stager_pass_down_vnni(const Axis *axis, const uint8_t *source, int64_t stride, int64_t bytes,
                                    uint8_t *out, int64_t out_stride)
{
    for (int64_t i = 0; i < axis->outputs; i++, out += out_stride) {
        const Output *output = &axis->output[i];
        for (int64_t x = 0; x < bytes; x += 64) {
            __mmask64 there = bytes - x < 64 ? (1ull << (bytes - x)) - 1 : ~0ull;
            const Quad *quad = &axis->quads[i / LANES * axis->groups];
            const uint8_t *row = source + output->first * stride + x;
            Sums sums[4] = {no_sums(), no_sums(), no_sums(), no_sums()};
            for (int64_t k = 0; k < output->count; k += TAPS, quad++) {
                __m512i of[TAPS], columns[4];
                for (int j = 0; j < TAPS; j++, row += stride)
                    of[j] = k + j < output->count ? _mm512_maskz_loadu_epi8(there, row) : _mm512_setzero_si512();
                __m512i low_01 = _mm512_unpacklo_epi8(of[0], of[1]), high_01 = _mm512_unpackhi_epi8(of[0], of[1]);
                __m512i low_23 = _mm512_unpacklo_epi8(of[2], of[3]), high_23 = _mm512_unpackhi_epi8(of[2], of[3]);
                columns[0] = _mm512_unpacklo_epi16(low_01, low_23);
                columns[1] = _mm512_unpackhi_epi16(low_01, low_23);
                columns[2] = _mm512_unpacklo_epi16(high_01, high_23);
                columns[3] = _mm512_unpackhi_epi16(high_01, high_23);
                for (int digit = 0; digit < DIGITS; digit++) {
                    int32_t packed;
                    memcpy(&packed, quad->digits[digit][i % LANES][0], sizeof packed);
                    __m512i weights = _mm512_set1_epi32(packed);
                    for (int j = 0; j < 4; j++)
                        sums[j].of[digit] = _mm512_dpbusd_epi32(sums[j].of[digit], columns[j], weights);
                }
            }
            /* Packing undoes the order of unpacking. */
            __m512i low = _mm512_packs_epi32(outputs_of(sums[0]), outputs_of(sums[1]));
            __m512i high = _mm512_packs_epi32(outputs_of(sums[2]), outputs_of(sums[3]));
            _mm512_mask_storeu_epi8(out + x, there, _mm512_packus_epi16(low, high));
        }
    }
}

#endif

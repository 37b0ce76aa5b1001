/* What resize.c, vnni.c and jpeg.c share: the two passes of a resize. */

#ifndef STAGER_RESIZE_H
#define STAGER_RESIZE_H

#include <stdint.h>

/* What is compiled, for the CPUs that have it. */
#if defined(__x86_64__) && !defined(STAGER_WITHOUT_AVX2)
#define STAGER_AVX2
#endif
#if defined(STAGER_AVX2) && (__GNUC__ >= 8 || __clang_major__ >= 7) && !defined(STAGER_WITHOUT_VNNI)
#define STAGER_VNNI
#endif

#define CHANNELS 3
#define WEIGHT_BITS 22
#define HALF (1 << (WEIGHT_BITS - 1))
#define TAPS 4 /* inputs that are weighed together: 12 bytes across, of 16 that are read; or four rows */
#define SLACK 16 /* bytes behind a row that the pass across may read, if they are there: it is faster then */

/* What one axis weighs: output i is the sum of `count` inputs from `first` on. */
typedef struct {
    int64_t first, count;
    int32_t *weights; /* as many as the axis has taps; those beyond `count` are 0 */
} Output;

typedef struct Quad Quad; /* what vnni.c needs of some weights */

typedef struct {
    int64_t outputs, taps;
    Output *output;
    int32_t *weights;
    Quad *quads; /* if this CPU can use them: for four outputs at a time, */
    int64_t groups; /* and as many groups of TAPS inputs */
} Axis;

int stager_weigh_axis(Axis *axis, int64_t inputs, int64_t all_outputs, int64_t begin, int64_t outputs);
int stager_take_part(Axis *axis, int64_t *begin, int64_t *length);
void stager_forget_axis(Axis *axis);
void stager_pass_across(const Axis *axis, const uint8_t *source, int64_t stride, int64_t rows, int has_slack,
                        uint8_t *out, int64_t out_stride);
void stager_pass_down(const Axis *axis, const uint8_t *source, int64_t stride, int64_t bytes, int32_t *sums,
                      uint8_t *out, int64_t out_stride);
int stager_has_vnni(void);
int stager_make_quads(Axis *axis);
void stager_pass_across_vnni(const Axis *axis, const uint8_t *source, int64_t stride, int64_t rows, uint8_t *out,
                             int64_t out_stride);
void stager_pass_down_vnni(const Axis *axis, const uint8_t *source, int64_t stride, int64_t bytes, uint8_t *out,
                           int64_t out_stride);

#endif

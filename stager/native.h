/* What native.c and jpeg.c share: the two passes of a resize. */

#ifndef STAGER_NATIVE_H
#define STAGER_NATIVE_H

#include <stdint.h>

#define CHANNELS 3
#define SLACK 16 /* bytes behind a row that the pass across may read, if they are there: it is faster then */

/* What one axis weighs: output i is the sum of `count` inputs from `first` on. */
typedef struct {
    int64_t first, count;
    int32_t *weights; /* as many as the axis has taps; those beyond `count` are 0 */
} Output;

typedef struct {
    int64_t outputs, taps;
    Output *output;
    int32_t *weights;
} Axis;

int stager_weigh_axis(Axis *axis, int64_t inputs, int64_t all_outputs, int64_t begin, int64_t outputs);
int64_t stager_take_part(Axis *axis, int64_t *length);
void stager_forget_axis(Axis *axis);
void stager_pass_across(const Axis *axis, const uint8_t *source, int64_t stride, int64_t rows, int has_slack,
                        uint8_t *out, int64_t out_stride);
void stager_pass_down(const Axis *axis, const uint8_t *source, int64_t stride, int64_t bytes, int32_t *sums,
                      uint8_t *out, int64_t out_stride);

#endif

/* The rows of a PNG: each byte was stored as its difference from what its neighbours foretell. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NONE, SUB, UP, AVERAGE, PAETH };

static uint8_t paeth(int left, int above, int corner)
{
    int to_left = abs(above - corner), to_above = abs(left - corner), to_corner = abs(left + above - 2 * corner);
    if (to_left <= to_above && to_left <= to_corner)
        return (uint8_t)left;
    return (uint8_t)(to_above <= to_corner ? above : corner);
}

/* `row` has its differences, and becomes its bytes. In front of both rows are `pixel` zeros. */
static int restore(int filter, uint8_t *row, const uint8_t *above, int64_t bytes, int64_t pixel)
{
    switch (filter) {
    case NONE:
        return 0;
    case SUB:
        for (int64_t i = 0; i < bytes; i++)
            row[i] = (uint8_t)(row[i] + row[i - pixel]);
        return 0;
    case UP:
        for (int64_t i = 0; i < bytes; i++)
            row[i] = (uint8_t)(row[i] + above[i]);
        return 0;
    case AVERAGE:
        for (int64_t i = 0; i < bytes; i++)
            row[i] = (uint8_t)(row[i] + (row[i - pixel] + above[i]) / 2);
        return 0;
    case PAETH:
        for (int64_t i = 0; i < bytes; i++)
            row[i] = (uint8_t)(row[i] + paeth(row[i - pixel], above[i], above[i - pixel]));
        return 0;
    }
    return 1;
}

/* Restore `rows` rows of `row_bytes` each, behind a byte with their filter, and put a part of them into `out`: from row
   `top` on `height` rows, and of each from byte `left` on `width` bytes. `is_deep`: samples of 16 bits, whose upper
   byte is first; in `out` it is the last. Return 0; 1: that is no PNG's; -1: there is no memory. */
int stager_restore_png(const uint8_t *data, int64_t size, int64_t rows, int64_t row_bytes, int64_t pixel, int64_t top,
                       int64_t left, int64_t height, int64_t width, int64_t is_deep, uint8_t *out)
{
    if (rows < 1 || row_bytes < 1 || pixel < 1 || pixel > 8 || size / (row_bytes + 1) < rows || top < 0 || left < 0 ||
        height < 1 || width < 1 || top + height > rows || left + width > row_bytes || (is_deep && width % 2))
        return 1;
    int64_t stride = row_bytes + pixel;
    uint8_t *both = calloc(2, (size_t)stride);
    if (!both)
        return -1;
    int result = 0;
    for (int64_t y = 0; y < rows && !result; y++, data += row_bytes + 1) {
        uint8_t *row = both + (y % 2) * stride + pixel, *above = both + ((y + 1) % 2) * stride + pixel;
        memcpy(row, data + 1, (size_t)row_bytes);
        result = restore(data[0], row, above, row_bytes, pixel);
        if (y < top || y >= top + height)
            continue;
        const uint8_t *part = row + left;
        if (is_deep)
            for (int64_t i = 0; i < width; i += 2, out += 2)
                out[0] = part[i + 1], out[1] = part[i];
        else
            memcpy(out, part, (size_t)width), out += width;
    }
    free(both);
    return result;
}

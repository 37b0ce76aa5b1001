/* A JPEG straight to its crop, resized: of a photo that becomes the centre of its smaller self, a third of the
   pixels is never needed. What is outside is read, for damage, and not computed; rows are resized while they
   are in the CPU's cache. The pixels are those of a whole decode and stager_resize, to the last bit. */

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "huffman.h"
#include "resize.h"

#define BAND 16   /* rows that are decoded together */
#define EXIF_AT 10 /* of an EXIF segment: behind its marker, its size and "Exif\0\0" */
#define ORIENTATION 0x0112
#define MARGIN 16 /* columns decoded on either side of what is needed: colours there mix with their neighbours */

typedef struct {
    struct jpeg_error_mgr manager;
    jmp_buf back;
} Errors;

static void give_up(j_common_ptr info)
{
    longjmp(((Errors *)info->err)->back, 1);
}

/* A warning is data that makes no sense: libjpeg would make something up. */
static void on_message(j_common_ptr info, int level)
{
    if (level < 0)
        give_up(info);
}

typedef struct {
    Axis down, across;
    uint8_t *band, *middle;
    int32_t *sums;
    struct jpeg_decompress_struct info;
    Errors errors;
    Huffman huffman;
} Work;

/* Whether all scans of a progressive image have been read. Of one that lacks some, libjpeg guesses the rest by the
   blocks around, and not every version, nor every part of an image, is guessed alike. */
static int is_refined(const struct jpeg_decompress_struct *info)
{
    if (!info->progressive_mode)
        return 1;
    for (int component = 0; component < info->num_components; component++)
        for (int k = 0; k < DCTSIZE2; k++)
            if (!info->coef_bits || info->coef_bits[component][k])
                return 0;
    return 1;
}

static int decode(Work *work, const uint8_t *data, int64_t size, int64_t height, int64_t width, int64_t box_top,
                  int64_t box_left, int64_t out_stride)
{
    struct jpeg_decompress_struct *info = &work->info;
    if (setjmp(work->errors.back))
        return 1;
    jpeg_mem_src(info, data, (unsigned long)size);
    jpeg_read_header(info, TRUE);
    if (info->image_height != height || info->image_width != width || info->num_components == 4)
        return 1;
    info->out_color_space = JCS_RGB;
    jpeg_start_decompress(info);
    if (!is_refined(info))
        return 1;
    if (stager_take_huffman(&work->huffman, info))
        return -1;

    int64_t first_row, first_column, rows, columns;
    if (stager_take_part(&work->down, &first_row, &rows) ||
        stager_take_part(&work->across, &first_column, &columns))
        return -1;
    first_row += box_top;
    first_column += box_left;
    JDIMENSION left = (JDIMENSION)(first_column > MARGIN ? first_column - MARGIN : 0);
    int64_t right = first_column + columns + MARGIN;
    JDIMENSION kept = (JDIMENSION)(right < width ? right : width) - left;
    if (kept < width)
        jpeg_crop_scanline(info, &left, &kept);
    int64_t stride = (int64_t)kept * CHANNELS;
    work->band = malloc((size_t)(BAND * stride + SLACK));
    work->middle = malloc((size_t)(rows * out_stride));
    work->sums = malloc((size_t)out_stride * sizeof(int32_t));
    if (!work->band || !work->middle || !work->sums)
        return -1;
    if (first_row)
        jpeg_skip_scanlines(info, (JDIMENSION)first_row);
    const uint8_t *begin = work->band + (first_column - left) * CHANNELS;
    for (int64_t done = 0; done < rows;) {
        int64_t many = rows - done < BAND ? rows - done : BAND;
        for (int64_t came = 0; came < many;) {
            JSAMPROW to[BAND];
            for (int64_t i = came; i < many; i++)
                to[i - came] = work->band + i * stride;
            came += jpeg_read_scanlines(info, to, (JDIMENSION)(many - came));
        }
        stager_pass_across(&work->across, begin, stride, many, 1, work->middle + done * out_stride, out_stride);
        done += many;
    }
    /* The rest is looked at, too. To skip all of it would be to leave it unread, so the last row is decoded. */
    if (info->output_scanline + 1 < info->output_height)
        jpeg_skip_scanlines(info, info->output_height - 1 - info->output_scanline);
    while (info->output_scanline < info->output_height)
        jpeg_read_scanlines(info, &(JSAMPROW){work->band}, 1);
    jpeg_finish_decompress(info);
    return 0;
}

static int is_in(const uint8_t *data, int64_t size, const char *text, int64_t text_bytes)
{
    for (int64_t at = 0; at + text_bytes <= size; at++)
        if (!memcmp(data + at, text, (size_t)text_bytes))
            return 1;
    return 0;
}

static int64_t number_at(const uint8_t *data, int bytes, int is_little)
{
    int64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number |= (int64_t)data[i] << 8 * (is_little ? i : bytes - 1 - i);
    return number;
}

/* Whether an EXIF block, a TIFF of its own, is plain and for certain turns nothing. */
static int is_upright(const uint8_t *tiff, int64_t size)
{
    int is_little = size >= 8 && !memcmp(tiff, "II*", 4);
    if (!is_little && (size < 8 || memcmp(tiff, "MM\0*", 4)))
        return 0;
    int64_t at = number_at(tiff + 4, 4, is_little);
    if (at > size - 2)
        return 0;
    int64_t entries = number_at(tiff + at, 2, is_little);
    if (at + 2 + entries * 12 > size)
        return 0;
    for (const uint8_t *entry = tiff + at + 2; entries--; entry += 12) {
        int64_t value = number_at(entry + 8, 2, is_little);
        int is_short = number_at(entry + 2, 2, is_little) == 3 && number_at(entry + 4, 4, is_little) == 1;
        if (number_at(entry, 2, is_little) == ORIENTATION && (!is_short || (value >= 2 && value <= 8)))
            return 0;
    }
    return 1;
}

/* Look at the segments before the pixels: the size of the image, and whether one may say that it is to be turned.
   Returns the width, from bit 16 on the height, and in bit 32 whether it may have to be turned; 0: it is no JPEG,
   or of a kind that others decode. */
int64_t stager_look_at_jpeg(const uint8_t *data, int64_t size)
{
    static const char XMP_TURN[] = "tiff:Orientation";
    int64_t height = 0, width = 0, may_be_turned = 0;
    if (size < 3 || data[0] != 0xff || data[1] != 0xd8 || data[2] != 0xff)
        return 0;
    for (int64_t at = 2, bytes; at + 4 <= size && data[at] == 0xff; at += bytes) {
        int marker = data[at + 1];
        bytes = 1; /* a fill byte */
        if (marker == 0xff)
            continue;
        if (marker == 0xda || marker == 0xd9)
            break;
        bytes = 2 + (data[at + 2] << 8 | data[at + 3]);
        int64_t there = bytes < size - at ? bytes : size - at;
        if (marker == 0xe1 && there >= EXIF_AT && !memcmp(data + at + 4, "Exif\0", 6))
            may_be_turned |= !is_upright(data + at + EXIF_AT, there - EXIF_AT);
        if (marker == 0xe1)
            may_be_turned |= is_in(data + at, there, XMP_TURN, sizeof XMP_TURN - 1);
        if (marker >= 0xc0 && marker <= 0xc2 && there >= 10 && data[at + 9] < 4) { /* with more colours, it is ink */
            height = data[at + 5] << 8 | data[at + 6];
            width = data[at + 7] << 8 | data[at + 8];
        }
    }
    return height && width ? may_be_turned << 32 | height << 16 | width : 0;
}

/* Decode a box of an image, resize that to `to_height` x `to_width` and put the window of it into `out`. Return 0;
   1: it is damaged, of another size, or of a kind that others decode; -1: there is no memory.
   `sides`: height << 16 | width of the image. `box`: top << 48 | left << 32 | height << 16 | width. */
int stager_decode_resized(const uint8_t *data, int64_t size, int64_t sides, int64_t box, int64_t to_height,
                          int64_t to_width, int64_t top, int64_t left, int64_t window_height,
                          int64_t window_width, uint8_t *out)
{
    int64_t height = sides >> 16, width = sides & 0xffff;
    int64_t box_top = (int64_t)((uint64_t)box >> 48), box_left = box >> 32 & 0xffff;
    int64_t box_height = box >> 16 & 0xffff, box_width = box & 0xffff;
    if (!box_height || !box_width || box_top + box_height > height || box_left + box_width > width)
        return 1;
    Work *work = calloc(1, sizeof *work); /* 100 KB: a thread may have a small stack */
    if (!work)
        return -1;
    work->info.err = jpeg_std_error(&work->errors.manager);
    work->errors.manager.error_exit = give_up;
    work->errors.manager.emit_message = on_message;
    if (setjmp(work->errors.back)) {
        free(work);
        return -1;
    }
    jpeg_create_decompress(&work->info);
    int64_t out_stride = window_width * CHANNELS;
    int result = stager_weigh_axis(&work->down, box_height, to_height, top, window_height) ||
                         stager_weigh_axis(&work->across, box_width, to_width, left, window_width)
                     ? -1
                     : decode(work, data, size, height, width, box_top, box_left, out_stride);
    if (result == 0)
        stager_pass_down(&work->down, work->middle, out_stride, out_stride, work->sums, out, out_stride);
    jpeg_destroy_decompress(&work->info);
    free(work->huffman.data);
    free(work->band);
    free(work->middle);
    free(work->sums);
    stager_forget_axis(&work->down);
    stager_forget_axis(&work->across);
    free(work);
    return result;
}

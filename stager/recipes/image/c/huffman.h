/* The Huffman decoding of a plain JPEG, in the place of libjpeg-turbo's own. */

#ifndef STAGER_HUFFMAN_H
#define STAGER_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jpeglib.h>

/* The place of the function that is replaced is not published by libjpeg. It was looked up in libjpeg-turbo 2.1 to 3.2;
   with any other, libjpeg's own stays. And bits are read as little-endian CPUs have them. */
#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && defined(JPEG_LIB_VERSION) && \
    (JPEG_LIB_VERSION == 62 || JPEG_LIB_VERSION == 70 || JPEG_LIB_VERSION == 80) && \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#if LIBJPEG_TURBO_VERSION_NUMBER >= 2001000 && LIBJPEG_TURBO_VERSION_NUMBER < 3003000
#define STAGER_HUFFMAN
#endif
#endif

#define PEEK 10 /* bits that are looked at together; with more, the tables leave no room in the CPU's first cache */

typedef struct {
    uint32_t entries[1 << PEEK]; /* by the bits that come next */
    uint64_t pairs[1 << PEEK];   /* the same, with what comes after it, if we see the whole of both */
    uint32_t end[17];            /* by length: the codes of that length are smaller */
    int32_t first_symbol[17];    /* and this, added to one, is the place of its symbol */
    uint8_t symbols[256];
} Codes;

typedef struct {
    Codes dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
    int32_t last[MAX_COMPS_IN_SCAN]; /* of each component, its last DC */
    /* By the number of a block in its MCU: what of these is its own. */
    const Codes *dc_of[D_MAX_BLOCKS_IN_MCU], *ac_of[D_MAX_BLOCKS_IN_MCU];
    int32_t *last_of[D_MAX_BLOCKS_IN_MCU];
    uint8_t *data; /* of the scan, with no byte that does not belong to it; the caller frees it */
    int64_t size;
    const uint8_t *end; /* of the scan, in the file */
    int64_t left;       /* MCUs to come */
    uint64_t bits;
    int count;
    const uint8_t *next;
} Huffman;

/* Take over from libjpeg, which has just started to decompress from memory, if the image is of the plain kind.
   `huffman` is zero before, and used until the end. Returns -1 if there is no memory, else 0. */
int stager_take_huffman(Huffman *huffman, j_decompress_ptr info);

/* Whether it takes over at all. */
int stager_has_huffman(void);

#endif

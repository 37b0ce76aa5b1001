/* The Huffman decoding of a plain JPEG, in the place of libjpeg-turbo's: it is more than half of a decode.

   It is a chain: where a code begins is known when the one before has ended, and the number that follows it. libjpeg
   finds the lengths of code and number one after the other. Here one look at the next bits finds both, and the number
   itself, unless that is long; and of two that are short, it finds both.

   All that it does not expect (a code that is none, bits that end early, bytes left over) is called wrong: then others
   decode the image, and say what it is. */

#include <stdlib.h>
#include <string.h>

#include "huffman.h"

#define UNLIKELY(fact) __builtin_expect(!!(fact), 0)
#define INLINE static inline __attribute__((always_inline))

#ifdef STAGER_HUFFMAN

_Static_assert(sizeof(JCOEF) == 2 && DCTSIZE2 == 64, "coefficients are as all of libjpeg-turbo has them");

/* How libjpeg's own interface of an entropy decoder begins (jpegint.h): see STAGER_HUFFMAN. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr info);
    boolean (*decode_mcu)(j_decompress_ptr info, JBLOCKROW *blocks);
};

#define MCU_BITS_MAX (64 * 31 * D_MAX_BLOCKS_IN_MCU) /* the longest codes and numbers */
#define AFTER_BYTES (MCU_BITS_MAX / 8 + 16) /* zeros behind the data: that it has ended is seen once an MCU */

/* What comes next: a code, and the number behind it. */
#define ALL_BITS(entry) ((int)((entry)&0xff)) /* of both; 0: the code is longer than we looked */
#define STEP(entry) ((int)((entry) >> 8 & 0x7f)) /* in a block, to where the number belongs */
#define NUMBER(entry) ((int32_t)(entry) >> 16)
#define CUT 0x8000u /* the number is longer than we looked, and in its place is how many bits it has */
#define END_OF_BLOCK 64 /* as a step, it leads out of every block */
#define NONSENSE 127    /* and so does this */

/* Where the k-th coefficient belongs. */
static const uint8_t NATURAL[DCTSIZE2] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

INLINE uint32_t entry_of(uint32_t symbol, int code_bits, int32_t number, int is_dc)
{
    uint32_t size = is_dc ? symbol : symbol & 15, zeros = is_dc ? 0 : symbol >> 4;
    uint32_t step = size || is_dc ? zeros + 1 : zeros == 15 ? 16 : END_OF_BLOCK;
    return (uint32_t)number << 16 | step << 8 | ((uint32_t)code_bits + size);
}

/* The number in the highest `size` bits: one that begins with 0 is negative. */
INLINE int32_t number_of(uint64_t bits, int size)
{
    int32_t if_negative = (int32_t)(~(int64_t)bits >> 63) & ((int32_t)(~0u << size) + 1);
    return (int32_t)(bits >> 1 >> (63 - size)) + if_negative;
}

/* Make an entry for each pattern of PEEK bits. Returns -1 if the table makes no sense. */
static int make_codes(Codes *codes, const JHUFF_TBL *table, int is_dc)
{
    uint32_t code = 0;
    int symbol_at = 0;
    for (int i = 0; i < 1 << PEEK; i++)
        codes->entries[i] = CUT;
    memcpy(codes->symbols, table->huffval, sizeof codes->symbols);
    for (int length = 1; length <= 16; length++, code <<= 1) {
        codes->first_symbol[length] = symbol_at - (int32_t)code;
        for (int many = table->bits[length]; many > 0; many--, code++) {
            if (symbol_at >= 256 || code >= 1u << length)
                return -1;
            uint32_t symbol = table->huffval[symbol_at++];
            int size = (int)(is_dc ? symbol : symbol & 15), left = PEEK - length;
            if (size > 15)
                return -1;
            for (uint32_t rest = 0; left >= 0 && rest < 1u << left; rest++)
                codes->entries[code << left | rest] =
                    size > left ? entry_of(symbol, length, size, is_dc) | CUT
                                : entry_of(symbol, length, number_of((uint64_t)rest << (63 - left) << 1, size), is_dc);
        }
        codes->end[length] = code;
    }
    return 0;
}

/* Two entries in one: below the first, with the bits of both; above the second, with the bits of the first. One that
   comes alone has as its second the same number again, in the same place. */
static void make_pairs(Codes *codes)
{
    for (uint32_t i = 0; i < 1 << PEEK; i++) {
        uint32_t first = codes->entries[i], bits = first & 0xff;
        uint32_t second = codes->entries[i << bits & ((1 << PEEK) - 1)], more = second & 0xff;
        if ((first | second) & CUT || STEP(first) == END_OF_BLOCK || bits + more > PEEK)
            second = first & 0xffff0000u, more = 0;
        codes->pairs[i] = (uint64_t)((second & ~0xffu) | bits) << 32 | (first & ~0xffu) | (bits + more);
    }
}

/* A code of more than PEEK bits, as an entry whose number is cut. */
static __attribute__((noinline)) uint32_t long_code(uint64_t bits, const Codes *codes, int is_dc)
{
    for (int length = PEEK + 1; length <= 16; length++) {
        uint32_t code = (uint32_t)(bits >> (64 - length));
        if (code < codes->end[length]) {
            uint32_t symbol = codes->symbols[(codes->first_symbol[length] + (int32_t)code) & 0xff];
            return entry_of(symbol, length, (int32_t)(is_dc ? symbol : symbol & 15), is_dc);
        }
    }
    return NONSENSE << 8;
}

/* The bits in a register, the next one highest. At least FULL of them are there after it was filled(). */
#define FULL 56
typedef struct {
    uint64_t bits;
    int count;
    const uint8_t *next;
} Bits;

INLINE Bits filled(Bits in)
{
    uint64_t more;
    memcpy(&more, in.next, sizeof more);
    in.bits |= __builtin_bswap64(more) >> in.count;
    in.next += (63 - in.count) >> 3;
    in.count |= FULL;
    return in;
}

INLINE Bits without(Bits in, int many)
{
    in.bits <<= many;
    in.count -= many;
    return in;
}

/* Take what comes next: at most PEEK bits; or more, and then it is full again. */
INLINE uint32_t take(Bits *in, const Codes *codes, int is_dc)
{
    uint32_t entry = codes->entries[in->bits >> (64 - PEEK)];
    if (UNLIKELY(entry & CUT)) {
        *in = filled(*in);
        if (UNLIKELY(!ALL_BITS(entry)))
            entry = long_code(in->bits, codes, is_dc);
        int size = NUMBER(entry), code_bits = ALL_BITS(entry) - size;
        int32_t number = number_of(in->bits << code_bits, size);
        *in = filled(without(*in, code_bits + size));
        return (uint32_t)number << 16 | (entry & 0x7fff);
    }
    *in = without(*in, ALL_BITS(entry));
    return entry;
}

static boolean decode_mcu(j_decompress_ptr info, JBLOCKROW *blocks)
{
    Huffman *huffman = info->client_data;
    Bits in = {huffman->bits, huffman->count, huffman->next};
    JCOEF nowhere[DCTSIZE2];
    for (int number = 0, many = info->blocks_in_MCU; number < many; number++) {
        JCOEF *block = blocks ? blocks[number][0] : nowhere; /* NULL: these rows are skipped */
        const Codes *codes = huffman->ac_of[number];
        in = filled(in);
        uint32_t entry = take(&in, huffman->dc_of[number], 1);
        int32_t value = *huffman->last_of[number] + NUMBER(entry);
        if (UNLIKELY(STEP(entry) == NONSENSE || value != (JCOEF)value))
            info->err->error_exit((j_common_ptr)info);
        *huffman->last_of[number] = value;
        block[0] = (JCOEF)value;
        int k = 0;
        while (k < 63) {
            in = filled(in);
#pragma GCC unroll 5
            for (int some = 0; some < FULL / PEEK; some++) { /* so many find bits enough */
                uint64_t pair = codes->pairs[in.bits >> (64 - PEEK)];
                if (UNLIKELY(pair & CUT)) {
                    entry = take(&in, codes, 0);
                    k += STEP(entry);
                    if (UNLIKELY(k >= 63))
                        break;
                    block[NATURAL[k]] = (JCOEF)NUMBER(entry);
                    continue;
                }
                Bits before = in;
                in = without(in, ALL_BITS(pair));
                entry = (uint32_t)pair;
                k += STEP(entry);
                if (UNLIKELY(k >= 63)) { /* then the second is none of this block */
                    in = without(before, ALL_BITS(pair >> 32));
                    break;
                }
                block[NATURAL[k]] = (JCOEF)NUMBER(entry);
                entry = (uint32_t)(pair >> 32);
                k += STEP(entry);
                if (UNLIKELY(k >= 63))
                    break;
                block[NATURAL[k]] = (JCOEF)NUMBER(entry);
            }
        }
        if (k == 63)
            block[63] = (JCOEF)NUMBER(entry);
        else if (STEP(entry) != END_OF_BLOCK)
            info->err->error_exit((j_common_ptr)info);
    }
    huffman->bits = in.bits, huffman->count = in.count, huffman->next = in.next;
    int64_t used = (in.next - huffman->data) * 8 - in.count, all = huffman->size * 8;
    huffman->left--;
    if (used > all || (!huffman->left && used <= all - 8))
        info->err->error_exit((j_common_ptr)info);
    if (!huffman->left) {
        info->src->bytes_in_buffer -= (size_t)(huffman->end - info->src->next_input_byte);
        info->src->next_input_byte = huffman->end;
    }
    return TRUE;
}

/* Copy the bytes up to the next marker, without the zero that is put behind each 0xff. Returns where they end. */
static const uint8_t *unstuff(Huffman *huffman, const uint8_t *from, const uint8_t *end)
{
    uint8_t *to = huffman->data;
    while (from < end) {
        const uint8_t *found = memchr(from, 0xff, (size_t)(end - from));
        size_t many = (size_t)((found ? found : end) - from);
        memcpy(to, from, many);
        to += many;
        from += many;
        if (!found || from + 1 >= end || from[1])
            break;
        *to++ = 0xff;
        from += 2;
    }
    huffman->size = to - huffman->data;
    memset(to, 0, AFTER_BYTES);
    return from;
}

int stager_take_huffman(Huffman *huffman, j_decompress_ptr info)
{
    if (info->progressive_mode || info->arith_code || info->restart_interval || jpeg_has_multiple_scans(info) ||
        info->data_precision != 8)
        return 0;
    for (int component = 0, made = 0; component < info->comps_in_scan; component++) {
        int dc = info->cur_comp_info[component]->dc_tbl_no, ac = info->cur_comp_info[component]->ac_tbl_no;
        int is_new_dc = !(made & 1 << dc), is_new_ac = !(made & 16 << ac); /* two colours share theirs */
        if ((is_new_dc && make_codes(&huffman->dc[dc], info->dc_huff_tbl_ptrs[dc], 1)) ||
            (is_new_ac && make_codes(&huffman->ac[ac], info->ac_huff_tbl_ptrs[ac], 0)))
            return 0;
        if (is_new_ac)
            make_pairs(&huffman->ac[ac]);
        made |= 1 << dc | 16 << ac;
    }
    for (int number = 0; number < info->blocks_in_MCU; number++) {
        int component = info->MCU_membership[number];
        huffman->dc_of[number] = &huffman->dc[info->cur_comp_info[component]->dc_tbl_no];
        huffman->ac_of[number] = &huffman->ac[info->cur_comp_info[component]->ac_tbl_no];
        huffman->last_of[number] = &huffman->last[component];
    }
    huffman->data = malloc(info->src->bytes_in_buffer + AFTER_BYTES);
    if (!huffman->data)
        return -1;
    const uint8_t *begin = info->src->next_input_byte;
    huffman->end = unstuff(huffman, begin, begin + info->src->bytes_in_buffer);
    huffman->next = huffman->data;
    huffman->left = (int64_t)info->MCUs_per_row * info->MCU_rows_in_scan;
    info->client_data = huffman;
    info->entropy->decode_mcu = decode_mcu;
    return 0;
}

#else

int stager_take_huffman(Huffman *huffman, j_decompress_ptr info)
{
    (void)huffman, (void)info;
    return 0;
}

#endif

int stager_has_huffman(void)
{
#ifdef STAGER_HUFFMAN
    return 1;
#else
    return 0;
#endif
}

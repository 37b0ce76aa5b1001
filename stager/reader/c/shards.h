/* Open shards, as stager_client/reading/rows.py tells them, and where a sample lies in them. */

#ifndef STAGER_SHARDS_H
#define STAGER_SHARDS_H

#include <stdint.h>

#include "windows.h"

typedef struct {
    int64_t number, rows, descriptor;
    Mapping mapping;
} Shard;

typedef struct {
    int64_t columns, count;
    const Shard *shard;           /* in the order of their numbers */
    const int64_t *const *starts; /* of each shard, for each column: where in the file its rows begin */
    const int64_t *const *sides;  /* the same: the sides of its rows, one row after the other; NULL: all have one */
    const int64_t *dimensions;    /* of each column: how many sides a row has */
    const int64_t *row_bytes;     /* of each column, if its rows are of one size */
    int64_t samples;
    const uint64_t *index; /* a word for each sample */
} Shards;

/* A sample that was found: under which word, where its rows are, and where they go. */
typedef struct {
    uint64_t word;
    int64_t shard, place;
} Found;

#define ROW(word) ((int64_t)((word) & 0xffffff))

/* With `checked`, only what has the word that stands there. A word of 0: it was not found. */
Found stager_find_sample(const Shards *shards, int64_t number, const uint64_t *checked, int64_t place);

/* Bytes of a file. Return 0 if they cannot be read whole. */
int stager_read_bytes(int descriptor, int64_t offset, uint8_t *room, int64_t bytes);

#endif

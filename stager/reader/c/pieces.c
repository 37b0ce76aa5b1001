/* Pieces of rows to their places in a batch: what a cut takes of them, and no other byte. It works on memory that
   the caller owns, knows nothing of Python, and is called without its lock.
   stager/reader/cuts/pieces.py has what a piece is, stager_client/reading/rows.py what is promised. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shards.h"
#include "windows.h"

#define DIMENSIONS 9
#define SCRATCH (256 * 1024L)  /* bytes that are read at once for a piece whose runs are apart */
#define LINE 64                /* bytes that the caches fetch at once */
#define AHEAD 2                /* pieces, of those that windows show */
#define ZEROS (-1)             /* in the place of a row: there is none, the output gets zeros */
#define OUTPUT (-2)            /* the same: the piece is in the output already, from `start` on */

typedef struct {
    int64_t row, start, to; /* in items, from the beginning of the row and of the output */
    int64_t sides[];        /* for each dimension: how many, and the steps from one to the next in both */
} Piece;

typedef struct {
    int64_t item_bytes, dimensions, count;
    int64_t is_apart;      /* no two pieces of rows go to one place: they may be copied in any order */
    const int64_t *pieces; /* `count` of them, each as long as its dimensions need */
    const int64_t *starts; /* where in their files the rows begin */
    uint8_t *out;
} Cutting;

/* A piece in bytes: runs that lie together, and how often they come on each level; the outer ones are last. */
typedef struct {
    int64_t run, levels, count[DIMENSIONS], from[DIMENSIONS], to[DIMENSIONS];
} Box;

static int64_t size_of(int64_t number)
{
    return number < 0 ? -number : number;
}

/* The inner levels are those with the smallest steps in the output, and dimensions that lie together in both
   become one. Return 0 if there is nothing in it. */
static int box_of(const Piece *piece, int64_t dimensions, int64_t item_bytes, Box *box)
{
    int64_t levels = 0, first = 0;
    for (int64_t i = dimensions - 1; i >= 0; i--) {
        int64_t count = piece->sides[3 * i], from = piece->sides[3 * i + 1] * item_bytes;
        int64_t to = piece->sides[3 * i + 2] * item_bytes, at = levels;
        if (count < 1)
            return 0;
        if (count == 1)
            continue;
        for (; at && size_of(box->to[at - 1]) > size_of(to); at--) {
            box->count[at] = box->count[at - 1], box->from[at] = box->from[at - 1], box->to[at] = box->to[at - 1];
        }
        box->count[at] = count, box->from[at] = from, box->to[at] = to, levels++;
    }
    box->run = item_bytes;
    for (; first < levels && box->from[first] == box->run && box->to[first] == box->run; first++)
        box->run *= box->count[first];
    box->levels = levels - first;
    for (int64_t i = 0; first && i < box->levels; i++)
        box->count[i] = box->count[i + first], box->from[i] = box->from[i + first], box->to[i] = box->to[i + first];
    return 1;
}

static int64_t span_of(const Box *box, int64_t levels)
{
    int64_t span = box->run;
    for (int64_t i = 0; i < levels; i++)
        span += (box->count[i] - 1) * box->from[i];
    return span;
}

/* Runs of a size that the compiler knows need no call; others are two of those that may overlap. */
#define RUNS_OF(bytes)                                                                                         \
    for (int64_t i = 0; i < count; i++, to += to_step, from += from_step)                                      \
        memcpy(to, from, bytes);
#define RUNS_BETWEEN(bytes)                                                                                    \
    for (int64_t i = 0; i < count; i++, to += to_step, from += from_step) {                                    \
        memcpy(to, from, bytes);                                                                               \
        memcpy(to + run - bytes, from + run - bytes, bytes);                                                   \
    }

static void copy_runs(uint8_t *to, const uint8_t *from, int64_t run, int64_t count, int64_t to_step,
                      int64_t from_step)
{
    if (run == 1 && from_step == 1 && to_step == -1) { /* back to front, eight at a time */
        for (; count >= 8; count -= 8, from += 8, to -= 8) {
            uint64_t eight;
            memcpy(&eight, from, 8);
            eight = __builtin_bswap64(eight);
            memcpy(to - 7, &eight, 8);
        }
        for (; count; count--)
            *to-- = *from++;
    } else if (run == 1)
        RUNS_OF(1)
    else if (run == 2)
        RUNS_OF(2)
    else if (run == 4)
        RUNS_OF(4)
    else if (run == 8)
        RUNS_OF(8)
    else if (run == 16)
        RUNS_OF(16)
    else if (run == 32)
        RUNS_OF(32)
    else if (run == 64)
        RUNS_OF(64)
    else if (run > 8 && run < 16)
        RUNS_BETWEEN(8)
    else if (run > 16 && run < 32)
        RUNS_BETWEEN(16)
    else if (run > 32 && run < 64)
        RUNS_BETWEEN(32)
    else
        RUNS_OF((size_t)run)
}

/* Nothing of a box is where it goes. The lowest `levels`, which are the inner ones. */
static void copy_box(const Box *box, int64_t levels, const uint8_t *from, uint8_t *to)
{
    if (levels < 2) {
        int64_t count = levels ? box->count[0] : 1;
        copy_runs(to, from, box->run, count, levels ? box->to[0] : 0, levels ? box->from[0] : 0);
        return;
    }
    for (int64_t i = 0; i < box->count[levels - 1]; i++)
        copy_box(box, levels - 1, from + i * box->from[levels - 1], to + i * box->to[levels - 1]);
}

/* The same of a whole box, while the caches fetch `next_bytes` from `next` on, which are copied soon: rows lie
   anywhere, and the CPU sees no pattern. A fetch of what is not mapped does nothing. */
static void copy_and_fetch(const Box *box, const uint8_t *from, uint8_t *to, const uint8_t *next, int64_t next_bytes)
{
    int64_t top = box->levels - 1, count = box->levels < 2 ? 1 : box->count[top], fetched = 0;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t end = next_bytes * (i + 1) / count; fetched < end; fetched += LINE)
            __builtin_prefetch(next + fetched);
        if (box->levels < 2)
            copy_box(box, box->levels, from, to);
        else
            copy_box(box, top, from + i * box->from[top], to + i * box->to[top]);
    }
}

/* `from` NULL: zeros; else it is in the output, and may be where it goes. */
static void fill_box(const Box *box, int64_t levels, const uint8_t *from, uint8_t *to)
{
    if (!levels) {
        if (from)
            memmove(to, from, (size_t)box->run);
        else
            memset(to, 0, (size_t)box->run);
        return;
    }
    for (int64_t i = 0; i < box->count[levels - 1]; i++)
        fill_box(box, levels - 1, from ? from + i * box->from[levels - 1] : NULL, to + i * box->to[levels - 1]);
}

/* What lies together goes straight to its place. Other runs are read together, as many as there is room for. */
static int read_box(const Box *box, int64_t levels, int descriptor, int64_t offset, uint8_t *to, uint8_t *scratch)
{
    if (!levels)
        return stager_read_bytes(descriptor, offset, to, box->run);
    int64_t span = span_of(box, levels);
    if (scratch && span <= SCRATCH) {
        if (!stager_read_bytes(descriptor, offset, scratch, span))
            return 0;
        copy_box(box, levels, scratch, to);
        return 1;
    }
    for (int64_t i = 0; i < box->count[levels - 1]; i++)
        if (!read_box(box, levels - 1, descriptor, offset + i * box->from[levels - 1],
                      to + i * box->to[levels - 1], scratch))
            return 0;
    return 1;
}

/* A piece of a row: where it is in which file. */
typedef struct {
    int64_t shard, start, bytes, row;
    const Piece *piece;
} Job;

static int compare_jobs(const void *one, const void *other)
{
    const Job *a = one, *b = other;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    return a->start < b->start ? -1 : a->start > b->start;
}

/* How many of these jobs come next, and the windows that show them: none, if they are read without. */
static int64_t windows_for(const Shards *shards, const Job *jobs, int64_t count, int64_t most, Window *windows,
                           int64_t *opened)
{
    int64_t at = 0, bytes = 0;
    *opened = 0;
    for (; at < count; at++) {
        const Mapping *mapping = &shards->shard[jobs[at].shard].mapping;
        int64_t start = jobs[at].start, end = start + jobs[at].bytes, had = *opened;
        if (!stager_is_huge(mapping, start, jobs[at].bytes))
            break;
        for (int64_t stop; start < end; start = stop) {
            Window *last = *opened ? &windows[*opened - 1] : NULL;
            stop = (start / HUGE_BYTES + 1) * HUGE_BYTES;
            stop = stop < end ? stop : end;
            if (last && last->mapping == mapping && last->start / HUGE_BYTES == start / HUGE_BYTES) {
                int64_t from = last->start < start ? last->start : start;
                int64_t to = last->start + last->bytes > stop ? last->start + last->bytes : stop;
                last->start = from, last->bytes = to - from;
            } else if (*opened < most)
                windows[(*opened)++] = (Window){mapping, start, stop - start, NULL};
            else
                break;
        }
        if (start < end) { /* it is for the next windows */
            *opened = had;
            break;
        }
        bytes += jobs[at].bytes;
    }
    if (bytes < *opened * WINDOW_BYTES)
        *opened = 0; /* too little of each piece is needed */
    return at ? at : 1;
}

/* Pieces of rows, one after the other. Rows that cannot be read lose their words. */
static void copy_jobs(const Shards *shards, const Job *jobs, int64_t count, uint64_t *words, const Cutting *cutting,
                      uint8_t *scratch)
{
    int64_t most = stager_begin_windows();
    for (int64_t first = 0; first < count;) {
        Window windows[WINDOWS];
        int64_t opened, shown = windows_for(shards, jobs + first, count - first, most, windows, &opened);
        int is_open = opened && stager_open_windows(windows, opened);
        for (int64_t end = first + shown; first < end; first++) {
            const Job *job = &jobs[first];
            uint8_t *to = cutting->out + job->piece->to * cutting->item_bytes;
            Box box;
            box_of(job->piece, cutting->dimensions, cutting->item_bytes, &box);
            const Shard *shard = &shards->shard[job->shard];
            if (is_open) {
                const Job *next = first + AHEAD < end ? job + AHEAD : job; /* shown, too */
                copy_and_fetch(&box, shard->mapping.at + job->start, to,
                               shards->shard[next->shard].mapping.at + next->start, next == job ? 0 : next->bytes);
            } else if (words[job->row] && !read_box(&box, box.levels, (int)shard->descriptor, job->start, to, scratch))
                words[job->row] = 0;
        }
        if (opened)
            stager_close_windows(windows, opened);
    }
    stager_end_windows();
}

/* The words of rows that cannot be read whole are lost. */
static void copy_column(const Shards *shards, const int64_t *at, uint64_t *words, const Cutting *cutting,
                        uint8_t *scratch, Job *jobs)
{
    int64_t length = 3 + 3 * cutting->dimensions, count = 0;
    for (int64_t i = 0; i < cutting->count; i++) {
        const Piece *piece = (const Piece *)(cutting->pieces + i * length);
        Box box;
        if (!box_of(piece, cutting->dimensions, cutting->item_bytes, &box))
            continue;
        int64_t start = piece->start * cutting->item_bytes;
        uint8_t *to = cutting->out + piece->to * cutting->item_bytes;
        if (piece->row == ZEROS) {
            fill_box(&box, box.levels, NULL, to);
        } else if (piece->row == OUTPUT) {
            copy_jobs(shards, jobs, count, words, cutting, scratch); /* it may be of these */
            count = 0;
            fill_box(&box, box.levels, cutting->out + start, to);
        } else if (words[piece->row]) {
            start += cutting->starts[piece->row];
            jobs[count++] = (Job){at[piece->row], start, span_of(&box, box.levels), piece->row, piece};
        }
    }
    if (cutting->is_apart)
        qsort(jobs, (size_t)count, sizeof *jobs, compare_jobs);
    copy_jobs(shards, jobs, count, words, cutting, scratch);
}

/* Where the rows of samples lie: words[i] is the word under which sample i was found, or 0; at[i] its shard.
   For each column: where its row begins and, where rows differ, its sides. Return how many were not found. */
int64_t stager_find_rows(const Shards *shards, int64_t samples, const int64_t *numbers, const uint64_t *checked,
                         uint64_t *words, int64_t *at, int64_t *const *starts, int64_t *const *sides)
{
    int64_t left = 0;
    for (int64_t i = 0; i < samples; i++) {
        Found found = stager_find_sample(shards, numbers[i], checked, i);
        for (int64_t column = 0; found.word && column < shards->columns; column++) {
            int64_t place = found.shard * shards->columns + column, row = ROW(found.word);
            int64_t dimensions = shards->dimensions[column];
            starts[column][i] = shards->starts[place][row];
            if (starts[column][i] <= 0) /* not noted yet: another thread checks it just now */
                found.word = 0;
            else if (shards->sides[place])
                memcpy(sides[column] + i * dimensions, shards->sides[place] + row * dimensions,
                       (size_t)dimensions * sizeof(int64_t));
        }
        words[i] = found.word, at[i] = found.shard;
        left += !found.word;
    }
    return left;
}

/* Copy pieces of the rows that were found. words[i] becomes 0 if row i could not be read, or has gone meanwhile:
   then nothing of it is to be used. Return how many of the words that there were are lost. */
int64_t stager_copy_pieces(const Shards *shards, int64_t samples, const int64_t *numbers, uint64_t *words,
                           const int64_t *at, int64_t columns, const Cutting *cuttings)
{
    int64_t lost = 0;
    for (int64_t i = 0; i < samples; i++)
        lost -= !words[i];
    int64_t most = 1;
    for (int64_t column = 0; column < columns; column++)
        most = cuttings[column].count > most ? cuttings[column].count : most;
    uint8_t *scratch = malloc(SCRATCH); /* without it, run by run */
    Job *jobs = malloc((size_t)most * sizeof *jobs);
    for (int64_t column = 0; jobs && column < columns; column++)
        copy_column(shards, at, words, &cuttings[column], scratch, jobs);
    for (int64_t i = 0; !jobs && i < samples; i++)
        words[i] = 0; /* there is no memory: nothing was copied */
    free(jobs);
    free(scratch);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* as in samples.c: the words are loaded after all bytes were */
    for (int64_t i = 0; i < samples; i++) {
        if (words[i] && __atomic_load_n(&shards->index[numbers[i]], __ATOMIC_ACQUIRE) != words[i])
            words[i] = 0;
        lost += !words[i];
    }
    return lost;
}

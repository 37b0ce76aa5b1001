/* The samples of a batch: index word, shard, row, and its bytes to where they belong. It works on memory that
   the caller owns, knows nothing of Python, and is called without its lock.
   stager_client/reading/rows.py has what it promises, stager/reader/index.py what a word means. */

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "shards.h"
#include "windows.h"

/* The highest byte says present, and nothing else but format and parity; and all bits together are even. */
#define IS_RESIDENT(word) (((word) >> 56 & 0xe7) == 0x80 && !__builtin_parityll(word))
#define SHARD(word) ((int64_t)((word) >> 24 & 0xffffffff))

static int64_t find_shard(const Shards *shards, int64_t number)
{
    int64_t first = 0, end = shards->count;
    while (first < end) {
        int64_t middle = first + (end - first) / 2;
        if (shards->shard[middle].number < number)
            first = middle + 1;
        else
            end = middle;
    }
    return first < shards->count && shards->shard[first].number == number ? first : -1;
}

int stager_read_bytes(int descriptor, int64_t offset, uint8_t *room, int64_t bytes)
{
    while (bytes) {
        ssize_t came = pread(descriptor, room, (size_t)bytes, offset);
        if (came < 0 && errno == EINTR)
            continue;
        if (came <= 0)
            return 0;
        room += came, offset += came, bytes -= came;
    }
    return 1;
}

Found stager_find_sample(const Shards *shards, int64_t number, const uint64_t *checked, int64_t place)
{
    Found none = {0, 0, 0};
    if (number < 0 || number >= shards->samples)
        return none;
    uint64_t word = __atomic_load_n(&shards->index[number], __ATOMIC_ACQUIRE);
    if (!IS_RESIDENT(word) || (checked && checked[number] != word))
        return none;
    int64_t at = find_shard(shards, SHARD(word));
    if (at < 0 || ROW(word) >= shards->shard[at].rows)
        return none;
    return (Found){word, at, place};
}

static Window window_of(const Shards *shards, const Found *found, int64_t column, uint8_t *const *out)
{
    int64_t bytes = shards->row_bytes[column];
    int64_t start = shards->starts[found->shard * shards->columns + column][ROW(found->word)];
    return (Window){&shards->shard[found->shard].mapping, start, bytes, out[column] + found->place * bytes};
}

/* Read one column of some samples, at most WINDOWS; what cannot be read whole loses its word. Through windows it
   goes past the CPU's caches, so what will be looked at right away, to be checked, is read by `pread`. */
static void read_column(const Shards *shards, Found *found, int64_t count, int64_t column, int is_checked,
                        uint8_t *const *out)
{
    Window windows[WINDOWS];
    int is_through[WINDOWS] = {0};
    int64_t through = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!found[i].word)
            continue;
        Window window = window_of(shards, &found[i], column, out);
        is_through[i] =
            is_checked && window.bytes >= WINDOW_BYTES && stager_is_huge(window.mapping, window.start, window.bytes);
        if (is_through[i])
            windows[through++] = window;
    }
    int is_done = through && stager_copy_through(windows, through);
    for (int64_t i = 0; i < count; i++) {
        if (!found[i].word || (is_through[i] && is_done))
            continue;
        Window window = window_of(shards, &found[i], column, out);
        int descriptor = (int)shards->shard[found[i].shard].descriptor;
        if (!stager_read_bytes(descriptor, window.start, window.room, window.bytes))
            found[i].word = 0;
    }
}

static int64_t readers; /* threads that read just now: they share the windows */

static int64_t share_of_windows(void)
{
    int64_t share = WINDOWS / __atomic_load_n(&readers, __ATOMIC_RELAXED);
    return share > WINDOWS_LEAST ? share : WINDOWS_LEAST;
}

int64_t stager_begin_windows(void)
{
    __atomic_add_fetch(&readers, 1, __ATOMIC_RELAXED);
    return share_of_windows();
}

void stager_end_windows(void)
{
    __atomic_sub_fetch(&readers, 1, __ATOMIC_RELAXED);
}

/* words[i] becomes the word under which sample i was read, and which it still had afterwards; or 0. With
   `checked`, only what has the word that stands there is read. Without `places`, sample i goes to row i.
   Return how many were not read. */
int64_t stager_read_samples(const Shards *shards, int64_t samples, const int64_t *numbers, const int64_t *places,
                            const uint64_t *checked, uint8_t *const *out, uint64_t *words)
{
    int64_t left = 0, count;
    stager_begin_windows();
    for (int64_t first = 0; first < samples; first += count) {
        int64_t share = share_of_windows();
        count = samples - first < share ? samples - first : share;
        Found found[WINDOWS];
        for (int64_t i = 0; i < count; i++)
            found[i] = stager_find_sample(shards, numbers[first + i], checked, places ? places[first + i] : first + i);
        for (int64_t column = 0; column < shards->columns; column++)
            read_column(shards, found, count, column, checked != NULL, out);
        /* The words are loaded only after all bytes were: arm64 may else look at a word before it has copied. */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        for (int64_t i = 0; i < count; i++) {
            /* A row is punched out only after its word has gone: what has it still was read right. */
            uint64_t word = found[i].word;
            int is_right = word && __atomic_load_n(&shards->index[numbers[first + i]], __ATOMIC_ACQUIRE) == word;
            words[first + i] = is_right ? word : 0;
            left += !is_right;
        }
    }
    stager_end_windows();
    return left;
}

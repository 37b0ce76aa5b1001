/* Rows that are read through a window: a part of a mapping that is there for a moment only. */

#ifndef STAGER_WINDOWS_H
#define STAGER_WINDOWS_H

#include <stdint.h>

#define WINDOWS 16 /* that all threads together have open: each is a piece of 2 MiB, or two, of our memory */
#define WINDOWS_LEAST 4 /* of a thread, however many there are */

typedef struct {
    const uint8_t *at; /* of the whole file; NULL: there is no mapping */
    int64_t bytes;
    uint8_t *pieces; /* what is known of each */
} Mapping;

typedef struct {
    const Mapping *mapping;
    int64_t start, bytes;
    uint8_t *room; /* where the row goes */
} Window;

/* Whether this part of a file is in huge pages of the page cache: only then does a window pay. What is not in
   memory is read from disk, by whole pieces. */
int stager_is_huge(const Mapping *mapping, int64_t start, int64_t bytes);

/* Copy rows through windows, at most WINDOWS. Return 0 if they could not be opened: nothing was copied. */
int stager_copy_through(const Window *windows, int64_t count);

#endif

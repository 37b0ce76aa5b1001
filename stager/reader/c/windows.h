/* Rows that are read through a window: a part of a mapping that is there for a moment only. */

#ifndef STAGER_WINDOWS_H
#define STAGER_WINDOWS_H

#include <stdint.h>

#define WINDOWS 16 /* that all threads together have open: each is a huge page (2 MiB), or two, of our memory */
#define HUGE_BYTES (2L << 20)
#define WINDOW_BYTES (1L << 15) /* a row that is shorter is not worth one */
#define WINDOWS_LEAST 4 /* of a thread, however many there are */

typedef struct {
    const uint8_t *at; /* of the whole file; NULL: there is no mapping */
    int64_t bytes;
    uint8_t *huge_pages; /* what is known of each */
} Mapping;

typedef struct {
    const Mapping *mapping;
    int64_t start, bytes;
    uint8_t *room; /* where the row goes */
} Window;

/* Whether this part of a file is in huge pages of the page cache: only then does a window pay, for a good part of
   such a page. What is not in memory is read from disk, by whole huge pages. */
int stager_is_huge(const Mapping *mapping, int64_t start, int64_t bytes);

/* Open windows, at most WINDOWS: what they show is there to be read. Return 0 if they could not all be opened.
   Either way they are to be closed. */
int stager_open_windows(const Window *windows, int64_t count);
void stager_close_windows(const Window *windows, int64_t count);

/* How many windows a thread may have open now: those that read share them. It reads until it has said so. */
int64_t stager_begin_windows(void);
void stager_end_windows(void);

/* Copy rows through windows, at most WINDOWS. Return 0 if they could not be opened: nothing was copied. */
int stager_copy_through(const Window *windows, int64_t count);

#endif

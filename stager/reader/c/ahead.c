/* Bytes that will be read soon, and may have to come from a disk: the kernel is told of all of them before the first
   is read, so that dozens of reads are under way and not one a thread. Nobody is given a byte here, and whatever
   the kernel makes of it, they are read and looked at as ever. Called without Python's lock. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>

#define STEP (512 * 1024L) /* of one that is larger, the kernel would take only the beginning */

void stager_read_ahead(int64_t count, const int64_t *descriptors, const int64_t *starts, const int64_t *bytes)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t at = 0; at < bytes[i]; at += STEP) {
            int64_t rest = bytes[i] - at;
            posix_fadvise((int)descriptors[i], starts[i] + at, rest < STEP ? rest : STEP, POSIX_FADV_WILLNEED);
        }
}

/* A row by `pread` is copied by the kernel, 4 KiB at a time. Where the page cache has the file in huge pages,
   it is faster to map the row, copy it past the CPU's caches, and give the mapping back at once: what stays
   mapped counts as memory of the process. Only huge pages are mapped and given back fast enough, and only newer
   kernels (Linux 6.14) map many rows by one call. In all other cases rows are read by `pread`.

   Pages are brought by calls that fail where a disk fails; a page that is touched would end the process. */

#define _GNU_SOURCE
#include "windows.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096L
#define HUGE HUGE_BYTES

#if defined(__x86_64__) && defined(SYS_process_madvise)
#include <immintrin.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define PIDFD_SELF (-10000)

enum { UNKNOWN, IN_HUGE_PAGE, IN_SMALL_PAGES };

static int cannot; /* this kernel, or this sandbox, has no windows */

/* Touch a huge page's first page, and look whether one far behind it has come along. */
static int is_mapped_whole(const uint8_t *huge)
{
    uint64_t entry = 0;
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0)
        return 0;
    if (!madvise((void *)huge, PAGE, MADV_POPULATE_READ)) {
        off_t at = (off_t)((uintptr_t)(huge + HUGE / 2) / PAGE * sizeof entry);
        if (pread(pagemap, &entry, sizeof entry, at) != sizeof entry)
            entry = 0;
        madvise((void *)huge, HUGE, MADV_DONTNEED);
    }
    close(pagemap);
    return (int)(entry >> 63);
}

int stager_is_huge(const Mapping *mapping, int64_t start, int64_t bytes)
{
    if (__atomic_load_n(&cannot, __ATOMIC_RELAXED) || !__builtin_cpu_supports("avx2") || !mapping->at ||
        start < 0 || start + bytes > mapping->bytes / HUGE * HUGE)
        return 0;
    for (int64_t number = start / HUGE; number <= (start + bytes - 1) / HUGE; number++) {
        const uint8_t *huge = mapping->at + number * HUGE;
        uint8_t *known = &mapping->huge_pages[number];
        uint8_t is = __atomic_load_n(known, __ATOMIC_RELAXED);
        if (is == IN_SMALL_PAGES)
            return 0;
        if (is == UNKNOWN) {
            is = is_mapped_whole(huge) ? IN_HUGE_PAGE : IN_SMALL_PAGES;
            __atomic_store_n(known, is, __ATOMIC_RELAXED);
            if (is == IN_SMALL_PAGES)
                return 0;
        }
    }
    return 1;
}

/* Past the caches, in which 38 MB of a batch have no place. */
__attribute__((target("avx2"))) static void copy(uint8_t *to, const uint8_t *from, int64_t bytes)
{
    int64_t head = (int64_t)(-(uintptr_t)to & 31), at = head < bytes ? head : bytes;
    memcpy(to, from, (size_t)at);
    for (; at + 128 <= bytes; at += 128) {
        _mm_prefetch((const char *)from + at + 1024, _MM_HINT_NTA);
        _mm_prefetch((const char *)from + at + 1088, _MM_HINT_NTA);
        for (int64_t i = at; i < at + 128; i += 32)
            _mm256_stream_si256((__m256i *)(to + i), _mm256_loadu_si256((const __m256i *)(from + i)));
    }
    memcpy(to + at, from + at, (size_t)(bytes - at));
    _mm_sfence();
}

/* The pages of a window, or all of the huge pages it is in. */
static struct iovec span(const Window *window, int64_t unit)
{
    int64_t first = window->start / unit * unit, end = (window->start + window->bytes + unit - 1) / unit * unit;
    return (struct iovec){(void *)(window->mapping->at + first), (size_t)(end - first)};
}

static int advise(const struct iovec *spans, int64_t count, int advice)
{
    long all = 0;
    for (int64_t i = 0; i < count; i++)
        all += (long)spans[i].iov_len;
    long done = syscall(SYS_process_madvise, PIDFD_SELF, spans, (size_t)count, advice, 0);
    if (done < 0 && (errno == ENOSYS || errno == EBADF || errno == EINVAL || errno == EPERM))
        __atomic_store_n(&cannot, 1, __ATOMIC_RELAXED);
    return done == all;
}

int stager_open_windows(const Window *windows, int64_t count)
{
    struct iovec pages[WINDOWS] = {{0}};
    for (int64_t i = 0; i < count; i++)
        pages[i] = span(&windows[i], PAGE);
    return advise(pages, count, MADV_POPULATE_READ);
}

void stager_close_windows(const Window *windows, int64_t count)
{
    struct iovec whole[WINDOWS] = {{0}};
    for (int64_t i = 0; i < count; i++)
        whole[i] = span(&windows[i], HUGE);
    if (!advise(whole, count, MADV_DONTNEED))
        for (int64_t i = 0; i < count; i++)
            madvise(whole[i].iov_base, whole[i].iov_len, MADV_DONTNEED);
}

int stager_copy_through(const Window *windows, int64_t count)
{
    int is_open = stager_open_windows(windows, count);
    for (int64_t i = 0; i < count && is_open; i++)
        copy(windows[i].room, windows[i].mapping->at + windows[i].start, windows[i].bytes);
    stager_close_windows(windows, count);
    return is_open;
}

#else

int stager_is_huge(const Mapping *mapping, int64_t start, int64_t bytes)
{
    (void)mapping, (void)start, (void)bytes;
    return 0;
}

int stager_open_windows(const Window *windows, int64_t count)
{
    (void)windows, (void)count;
    return 0;
}

void stager_close_windows(const Window *windows, int64_t count)
{
    (void)windows, (void)count;
}

int stager_copy_through(const Window *windows, int64_t count)
{
    (void)windows, (void)count;
    return 0;
}

#endif

/* Map a whole file, to be read through windows. What is not in the page cache will come in huge pages. NULL: it
   cannot be mapped, or is too small to pay. */
uint8_t *stager_map(int descriptor, int64_t *bytes)
{
    struct stat is;
    if (fstat(descriptor, &is) || is.st_size < HUGE)
        return NULL;
    void *at = mmap(NULL, (size_t)is.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED)
        return NULL;
    madvise(at, (size_t)is.st_size, MADV_HUGEPAGE);
    *bytes = is.st_size;
    return at;
}

void stager_unmap(uint8_t *at, int64_t bytes)
{
    munmap(at, (size_t)bytes);
}

/* A slow mount: LD_PRELOAD this, and each opening of a file below STAGER_SLOW_ROOT for reading comes late by
   STAGER_SLOW_US microseconds. Other calls, and other files, are as they are. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *root;
static size_t root_length;
static long delay_us;

__attribute__((constructor)) static void begin(void) {
    const char *delay = getenv("STAGER_SLOW_US");
    root = getenv("STAGER_SLOW_ROOT");
    root_length = root ? strlen(root) : 0;
    delay_us = delay ? atol(delay) : 0;
}

static void wait_for(int at, const char *path, int flags) {
    char whole[PATH_MAX];
    struct stat about;
    if (!root_length || !delay_us || (flags & (O_DIRECTORY | O_WRONLY | O_RDWR | O_CREAT))) return;
    if (path[0] != '/') {
        char link[64];
        ssize_t length;
        if (at == AT_FDCWD) {
            if (!getcwd(whole, sizeof whole)) return;
            length = (ssize_t)strlen(whole);
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            length = readlink(link, whole, sizeof whole - 1);
            if (length < 0) return;
        }
        if ((size_t)length + strlen(path) + 2 > sizeof whole) return;
        whole[length] = '/';
        strcpy(whole + length + 1, path);
        path = whole;
    }
    if (strncmp(path, root, root_length) || (path[root_length] != '/' && path[root_length])) return;
    if (stat(path, &about) || !S_ISREG(about.st_mode)) return;
    struct timespec left = {delay_us / 1000000, delay_us % 1000000 * 1000};
    while (nanosleep(&left, &left)) continue;
}

static mode_t mode_of(int flags, va_list more) {
    return flags & (O_CREAT | O_TMPFILE) ? (mode_t)va_arg(more, int) : 0;
}

#define OPEN(name)                                                                                             \
    int name(const char *path, int flags, ...) {                                                              \
        static int (*real)(const char *, int, ...);                                                           \
        va_list more;                                                                                         \
        va_start(more, flags);                                                                                \
        mode_t mode = mode_of(flags, more);                                                                   \
        va_end(more);                                                                                         \
        if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                           \
        wait_for(AT_FDCWD, path, flags);                                                                      \
        return real(path, flags, mode);                                                                       \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                           \
    int name(int at, const char *path, int flags, ...) {                                                      \
        static int (*real)(int, const char *, int, ...);                                                      \
        va_list more;                                                                                         \
        va_start(more, flags);                                                                                \
        mode_t mode = mode_of(flags, more);                                                                   \
        va_end(more);                                                                                         \
        if (!real) real = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #name);                      \
        wait_for(at, path, flags);                                                                            \
        return real(at, path, flags, mode);                                                                   \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                                            \
    FILE *name(const char *path, const char *mode) {                                                          \
        static FILE *(*real)(const char *, const char *);                                                     \
        if (!real) real = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #name);                   \
        wait_for(AT_FDCWD, path, mode[0] == 'r' ? O_RDONLY : O_WRONLY);                                       \
        return real(path, mode);                                                                              \
    }
FOPEN(fopen)
FOPEN(fopen64)

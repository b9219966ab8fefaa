/* Preloaded into a process: of its reads, looks and openings for reading below two directories, one fails, or all from
   one on. Machine code reads by calls of its own, so nothing above the C library sees them all. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char places[2][512], first[600];
static volatile long steps;
static long failing_step = -1;
static int number, goes_on;

/* Begin to count; step `at` fails with `errno_of_it`, and with `ever_after` all that follow. Below 0: none does. */
void fault_arm(const char *place, const char *other, long at, int errno_of_it, int ever_after) {
    strncpy(places[0], place, sizeof places[0] - 1);
    strncpy(places[1], other, sizeof places[1] - 1);
    failing_step = at, number = errno_of_it, goes_on = ever_after, steps = 0, first[0] = 0;
}

long fault_steps(void) { return steps; }
const char *fault_first(void) { return first; }

static int is_ours(const char *path) {
    for (int i = 0; i < 2; i++)
        if (places[i][0] && !strncmp(path, places[i], strlen(places[i]))) return 1;
    return 0;
}

static int fails(const char *call, const char *path) {
    if (!is_ours(path)) return 0;
    long step = __sync_fetch_and_add(&steps, 1);
    if (failing_step < 0 || step < failing_step || (step > failing_step && !goes_on)) return 0;
    if (!first[0]) snprintf(first, sizeof first, "%s %s", call, path);
    errno = number;
    return 1;
}

static int fails_at(const char *call, int descriptor) {
    if (!places[0][0]) return 0;
    char link[64], path[600];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length <= 0) return 0;
    path[length] = 0;
    return fails(call, path);
}

static int fails_below(const char *call, int directory, const char *path) {
    if (!places[0][0]) return 0;
    if (path[0] == '/') return fails(call, path);
    char link[64], above[600], whole[1200];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, above, sizeof above - 1);
    errno = before;
    if (length <= 0) return 0;
    above[length] = 0;
    snprintf(whole, sizeof whole, "%s/%s", above, path);
    return fails(call, whole);
}

#define REAL(name, result, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, #name)

#define READS(name, ARGUMENTS, PASSED, ...) \
    ssize_t name ARGUMENTS { REAL(name, ssize_t, __VA_ARGS__); return fails_at(#name, fd) ? -1 : real PASSED; }

READS(read, (int fd, void *to, size_t n), (fd, to, n), int, void *, size_t)
READS(pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), int, void *, size_t, off_t)
READS(pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at), int, void *, size_t, off64_t)
READS(preadv2, (int fd, const struct iovec *to, int n, off_t at, int flags), (fd, to, n, at, flags), int,
      const struct iovec *, int, off_t, int)
READS(preadv64v2, (int fd, const struct iovec *to, int n, off64_t at, int flags), (fd, to, n, at, flags), int,
      const struct iovec *, int, off64_t, int)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        return (flags & O_ACCMODE) == O_RDONLY && fails(#name, path) ? -1 : real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define LOOKS(name, form) \
    int name(const char *path, struct form *found) { \
        REAL(name, int, const char *, struct form *); \
        return fails(#name, path) ? -1 : real(path, found); \
    }
LOOKS(stat, stat)
LOOKS(stat64, stat64)
LOOKS(lstat, stat)
LOOKS(lstat64, stat64)

#define LOOKS_BELOW(name, form) \
    int name(int directory, const char *path, struct form *found, int flags) { \
        REAL(name, int, int, const char *, struct form *, int); \
        return fails_below(#name, directory, path) ? -1 : real(directory, path, found, flags); \
    }
LOOKS_BELOW(fstatat, stat)
LOOKS_BELOW(fstatat64, stat64)

DIR *opendir(const char *path) {
    REAL(opendir, DIR *, const char *);
    return fails("opendir", path) ? NULL : real(path);
}

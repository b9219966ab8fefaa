/* Preloaded into a process: while the file HUNG_WHILE is there, no call that opens or looks at what lies below HUNG_BELOW
   comes back, as on a mount whose server has gone. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wait_for(const char *path) {
    const char *below = getenv("HUNG_BELOW"), *while_there = getenv("HUNG_WHILE");
    if (!path || !below || !while_there || strncmp(path, below, strlen(below))) return;
    while (!syscall(SYS_access, while_there, F_OK)) usleep(10000);
}

#define REAL(name, result, ...) \
    static result (*real)(__VA_ARGS__); \
    wait_for(path); \
    if (!real) real = dlsym(RTLD_NEXT, #name)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        return real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define LOOKS(name, form) \
    int name(const char *path, struct form *found) { \
        REAL(name, int, const char *, struct form *); \
        return real(path, found); \
    }
LOOKS(stat, stat)
LOOKS(stat64, stat64)
LOOKS(lstat, stat)
LOOKS(lstat64, stat64)

int access(const char *path, int how) {
    REAL(access, int, const char *, int);
    return real(path, how);
}

DIR *opendir(const char *path) {
    REAL(opendir, DIR *, const char *);
    return real(path);
}

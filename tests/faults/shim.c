// Preloaded library that counts the file operations below a directory, in all threads and child processes, and kills
// the process, or returns an error, at one of them. Off until `faults_begin` is called.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char below[4096];
static volatile long *count = 0;  // shared with the processes that are forked later
static long fail_at = 0;
static int error = 0;  // 0: the process is killed

// Operations below `directory` are counted from now on; the one with the number `at` (from 1; 0: none) fails.
void faults_begin(const char *directory, long at, int error_number) {
    strncpy(below, directory, sizeof below - 1);
    count = mmap(0, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fail_at = at;
    error = error_number;
}

long faults_count(void) { return count ? *count : 0; }

static int is_below(const char *path) {
    char whole[8192];
    if (!count || !path) return 0;
    if (path[0] != '/') {
        if (!getcwd(whole, 4096)) return 0;
        strcat(strcat(whole, "/"), "");
        strncat(whole, path, 4000);
        path = whole;
    }
    return !strncmp(path, below, strlen(below));
}

static int is_below_fd(int fd) {
    char link[64], path[4096];
    if (!count || fd < 3) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return is_below(path);
}

// Whether the operation fails; does not return where the process is killed.
static int fails(int counts) {
    if (!counts || __sync_add_and_fetch(count, 1) != fail_at) return 0;
    if (!error) {
        kill(getpid(), SIGKILL);
        pause();
    }
    errno = error;
    return 1;
}

#define NEXT(name) \
    static __typeof__(&name) next = 0; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t n) { NEXT(write); return fails(is_below_fd(fd)) ? -1 : next(fd, data, n); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { NEXT(pwrite); return fails(is_below_fd(fd)) ? -1 : next(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { NEXT(pwrite64); return fails(is_below_fd(fd)) ? -1 : next(fd, data, n, at); }
int fsync(int fd) { NEXT(fsync); return fails(is_below_fd(fd)) ? -1 : next(fd); }
int rename(const char *from, const char *to) { NEXT(rename); return fails(is_below(to)) ? -1 : next(from, to); }
int unlink(const char *path) { NEXT(unlink); return fails(is_below(path)) ? -1 : next(path); }
int rmdir(const char *path) { NEXT(rmdir); return fails(is_below(path)) ? -1 : next(path); }
int unlinkat(int at, const char *path, int flags) { NEXT(unlinkat); return fails(is_below(path) || is_below_fd(at)) ? -1 : next(at, path, flags); }
int mkdir(const char *path, mode_t mode) { NEXT(mkdir); return fails(is_below(path)) ? -1 : next(path, mode); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); } \
        return fails((flags & O_CREAT) && is_below(path)) ? -1 : next(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

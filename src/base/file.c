/* Invariant: every call passes injected() once, so that the n-th failure is the n-th call. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_int fault_call = FILE_ANY, fault_errno;
static atomic_long fault_first, fault_last; /* which calls fail; first 0 = none */
static atomic_long counts[FILE_N_CALLS + 1];

void file_fail(enum file_call call, long nth, long times, int error_number)
{
    atomic_store(&fault_first, 0);
    atomic_store(&fault_call, (int)call);
    atomic_store(&fault_errno, error_number);
    for (int i = 0; i <= FILE_N_CALLS; i++)
        atomic_store(&counts[i], 0);
    atomic_store(&fault_last, times > INT32_MAX ? INT64_MAX : nth + times - 1);
    atomic_store(&fault_first, nth);
}

long file_calls(enum file_call call)
{
    return atomic_load(&counts[call]);
}

static int injected(enum file_call call)
{
    long of_kind = atomic_fetch_add(&counts[call], 1) + 1, of_any = atomic_fetch_add(&counts[FILE_ANY], 1) + 1;
    long first = atomic_load(&fault_first), at = atomic_load(&fault_call) == FILE_ANY ? of_any : of_kind;
    if (first == 0 || (atomic_load(&fault_call) != FILE_ANY && atomic_load(&fault_call) != (int)call) || at < first || at > atomic_load(&fault_last))
        return 0;
    errno = atomic_load(&fault_errno);
    return 1;
}

int file_open_at(int dir, const char *name, int flags, mode_t mode)
{
    if (injected(FILE_OPEN))
        return -1;
    return openat(dir, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
}

int file_size(int fd, uint64_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -1;
    if (!S_ISREG(st.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    *bytes = (uint64_t)st.st_size;
    return 0;
}

int file_read_at(int fd, void *data, size_t n, uint64_t offset)
{
    if (injected(FILE_READ))
        return -1;
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char *)data + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            if (got == 0)
                errno = ENODATA;
            return -1;
        }
        done += (size_t)got;
    }
    return 0;
}

static int write_all(int fd, const char *data, size_t n, uint64_t offset)
{
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(fd, data + done, n - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            if (put == 0)
                errno = EIO;
            return -1;
        }
        done += (size_t)put;
    }
    return 0;
}

int file_write_at(int fd, const void *data, size_t n, uint64_t offset)
{
    if (injected(FILE_WRITE)) {
        int saved = errno;
        (void)write_all(fd, data, n / 2, offset);
        errno = saved;
        return -1;
    }
    return write_all(fd, data, n, offset);
}

int file_allocate(int fd, uint64_t bytes)
{
    if (injected(FILE_WRITE))
        return -1;
    if (fallocate(fd, 0, 0, (off_t)bytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR)
        return 0;
    return -1;
}

int file_truncate(int fd, uint64_t bytes)
{
    return injected(FILE_WRITE) ? -1 : ftruncate(fd, (off_t)bytes);
}

int file_sync(int fd)
{
    return injected(FILE_SYNC) ? -1 : fsync(fd);
}

int file_rename_at(int dir, const char *from, const char *to)
{
    return injected(FILE_RENAME) ? -1 : renameat(dir, from, dir, to);
}

int file_unlink_at(int dir, const char *name)
{
    return injected(FILE_UNLINK) ? -1 : unlinkat(dir, name, 0);
}

void file_forget(int fd)
{
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

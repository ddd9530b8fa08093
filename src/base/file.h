/* File calls by a folder's descriptor, the way files are to be handled that somebody else may have put there: links are never followed, opening never waits, and what is transferred
 * is everything or an error. A fault list that tests set stands in front of each. Any thread. All return -1 with errno when they fail. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum file_call { FILE_OPEN, FILE_READ, FILE_WRITE, FILE_SYNC, FILE_RENAME, FILE_UNLINK, FILE_N_CALLS, FILE_ANY = FILE_N_CALLS };

int file_open_at(int dir, const char *name, int flags, mode_t mode);
/* The size of a regular file; anything else is EINVAL. */
int file_size(int fd, uint64_t *bytes);
/* ENODATA where the file ends before. */
int file_read_at(int fd, void *data, size_t n, uint64_t offset);
int file_write_at(int fd, const void *data, size_t n, uint64_t offset);
/* Takes the room on the disk now, so that a full one shows before anything is written; where a file system cannot, nothing happens. Counts as a write. */
int file_allocate(int fd, uint64_t bytes);
/* Cuts it off; counts as a write too. */
int file_truncate(int fd, uint64_t bytes);
int file_sync(int fd);
int file_rename_at(int dir, const char *from, const char *to);
int file_unlink_at(int dir, const char *name);
/* Its pages need not be kept in memory. */
void file_forget(int fd);

/* For tests: the nth call of this kind from now on (1 = the next; 0 = off) and the `times` - 1 after it fail with this errno. A write that fails so has written half. */
void file_fail(enum file_call call, long nth, long times, int error_number);
/* Calls of this kind since file_fail was last called. */
long file_calls(enum file_call call);

#endif

/* How much memory the host leaves to this process, from the texts that the kernel shows. Any thread. */
#ifndef COMPUTE_MEMORY_H
#define COMPUTE_MEMORY_H

#include "compute/device.h"

/* Reads ROOT/proc and ROOT/sys/fs/cgroup ("" is the machine's own). address_limit: RLIMIT_AS, UINT64_MAX when unlimited. ERR_IO when not even meminfo tells. */
int memory_survey(const char *root, uint64_t address_limit, struct device_memory *out, struct err *err) MUST_CHECK;

/* The number that follows `name` at the start of a line ("MemTotal:  123 kB", "inactive_file 456", "total_rss 7"): 1 and *out, or 0. A "kB" behind it is taken into account. */
int memory_field(const char *text, const char *name, uint64_t *out);

/* The folder of this process below the controller's mount, from the text of /proc/self/cgroup: of v1's memory controller ("memory") or of v2 (""). 1, or 0 when there is none, when
 * it does not fit, or when it lies outside of what is mounted here ("/../x"). "/" comes out as "". */
int memory_cgroup_path(const char *text, const char *controller, char *out, size_t n);

#endif

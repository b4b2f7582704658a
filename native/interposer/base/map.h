/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of which the kernel may take pages. Takes no lock; async-signal-safe. */
#ifndef HAMI_MAP_H
#define HAMI_MAP_H
#include <stddef.h>

/* As mmap(), to be read and written; but not locked, though the program locks all that it maps (mlockall). NULL: errno. */
void *hami_map(size_t bytes, int flags, int fd);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The UUIDs of GPUs: as text, "GPU-1b4e28ba-..." or "MIG-...", and in 16 bytes. Pure. */
#ifndef HAMI_UUID_H
#define HAMI_UUID_H
#include <stdbool.h>

#define HAMI_UUID_BYTES 16

/* Reads the text; false when it is no UUID. */
bool hami_uuid_read(const char *text, unsigned char bytes[HAMI_UUID_BYTES]);

#endif

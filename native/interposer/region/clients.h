/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the clients of an MPS server tell each other: in a file in the server's pipe directory, which root has made for
 * its users to write (hami_hpc/node/mps_directories.py). A client that is paused stops all of them (ADR 113). So each says
 * which channels it pauses, and until when: if it has not resumed them by then, as one that is stopped has not, others do.
 * And each says which timeslice it wants, as the server has one for all.
 *
 * The file is read and written, not mapped: whoever may write it may cut it short. Nothing in it is believed: what is
 * wrong there costs its reader calls that the driver refuses, or does what the writer could have done without it.
 *
 * A client has one entry, for as long as it holds the lock of the entry's first byte (an open-file-description lock, which
 * the kernel drops at its death). For the keeper's thread: no lock. Not async-signal-safe. A forked child has no entry.
 */
#ifndef HAMI_CLIENTS_H
#define HAMI_CLIENTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HAMI_CLIENTS_MOST 64u /* a server of driver 580 has 60 at most */
#define HAMI_CLIENT_CHANNELS_MOST 16u
#define HAMI_CLIENT_VERSION 1u

struct hami_client {
	uint32_t version;      /* HAMI_CLIENT_VERSION; entries of others are passed over */
	uint32_t pid;          /* in the driver's records (driver/switches.h); 0: not known */
	int64_t paused_until;  /* by hami_clock_shared(); 0: it is not paused */
	uint32_t timeslice_us; /* that it would give the server; 0: any */
	uint32_t count;
	uint32_t place; /* in the file, less than HAMI_CLIENTS_MOST; filled in by who reads it */
	uint32_t reserved;
	struct {
		uint32_t client, channel; /* the driver's handles */
	} channels[HAMI_CLIENT_CHANNELS_MOST];
};

/* Returns whether this process has an entry: takes one at the first call, where there is a file and an entry is free. */
bool hami_clients_join(void);
/* Writes this process's entry, once it has joined. Returns whether it is there. */
bool hami_clients_write(const struct hami_client *own);
/* Reads the entries of the others that live. Returns how many. */
size_t hami_clients_read(struct hami_client list[HAMI_CLIENTS_MOST]);

/* In a forked child: its entry is its parent's. */
void hami_clients_forked(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The control daemon's state: one thread has it. */
#ifndef SIM_MPS_DAEMON_H
#define SIM_MPS_DAEMON_H
#include <poll.h>
#include <stdbool.h>

#include "control.h"

enum { CONNECTIONS = 128, LISTENERS = 2, GPUS = 16, PARTITIONS = 32 };

enum kind { NEW, UI, WAITING_CLIENT, CLIENT };

struct connection {
	enum kind kind;
	int pid;
	unsigned uid;
	char line[MPS_LINE];
	size_t used;
	char partition[128]; /* a client's CUDA_MPS_SM_PARTITION; "": it has none */
};

struct partition {
	char id[48];
	unsigned chunks;
};

struct mps_daemon {
	bool multi_user, quitting, is_static;
	unsigned uid;
	double percent, server_percent;
	int priority;
	unsigned long long mem[GPUS], server_mem[GPUS]; /* bytes; 0: no limit */
	int server, server_fd;                          /* pid, 0: none */
	unsigned server_uid;
	int status;
	FILE *log;
	struct pollfd fd[LISTENERS + CONNECTIONS];
	struct connection of[LISTENERS + CONNECTIONS];
	nfds_t count;
	unsigned chunks, chunk_sms, all_sms; /* of the GPU, where the program knows static partitions */
	struct partition partitions[PARTITIONS];
	unsigned partition_count, partition_serial;
};
extern struct mps_daemon d;

/* Writes a line to control.log. */
__attribute__((format(printf, 1, 2))) void note(const char *format, ...);

/* Answers connection i; the text ends with a NUL there. */
__attribute__((format(printf, 2, 3))) void answer(nfds_t i, const char *format, ...);

int client_count(void);

/* Returns whether a server of this user is there, having started one if there is none. */
bool start_server(unsigned uid);

/* Asks the server to end, or kills it. */
void end_server(void);

/* Notes the end of the server, if it has ended; waits for it if it should. */
void reap(bool block);

/* Ends the server within the time, then this process; timeout_s -1: once there are no clients. */
void quit(int timeout_s);

/* Returns whether $HAMI_SIM/mps-static is there ("CHUNKS SMS-OF-A-CHUNK SMS"): a program of driver 590 or later. */
bool partitions_known(void);

/* Returns the partition that "GPU-.../ID" names, or NULL. */
const struct partition *partition_of(const char *name);

/* Obeys "sm_partition ..." and "lspart" of connection i. */
void partition_command(nfds_t i, const char *rest);
void list_partitions(nfds_t i);

/* Obeys one command of connection i. */
void command(nfds_t i, const char *line);
#endif

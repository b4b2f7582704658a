/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulated control daemon, its server and the simulated libcuda say to each other. NVIDIA's protocol is
 * not public, so this is another one; the files, modes, commands, answers and privileges are as seen with
 * nvidia-cuda-mps-control 535.261.03 and as the strings of 580.178.04 and its manual page say (docs/adr/052).
 *
 * A connection begins with one line: "UI" for commands, "CLIENT partition" for a CUDA process. The daemon answers a
 * client "SERVER pid percent priority bytes multiprocessors" (0: not static) or "ERROR code"; each answer ends with a NUL. A client then connects to the
 * server and keeps both connections for its life: the server says 'T' before it closes one that was terminated.
 */
#ifndef SIM_MPS_H
#define SIM_MPS_H
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define MPS_PIPE_VARIABLE "CUDA_MPS_PIPE_DIRECTORY"
#define MPS_PIPE_DEFAULT "/tmp/nvidia-mps"
#define MPS_SERVER_NAME "nvidia-cuda-mps-server"
enum { MPS_LINE = 512, MPS_QUIT = 'q', MPS_TERMINATE = 't', MPS_TERMINATED = 'T' };

/* The server's address: an abstract name, as its user cannot write to the pipe directory. Returns its length. */
static inline socklen_t mps_server_address(struct sockaddr_un *out, int pid)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "hami-sim-mps-%d", pid);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* 0, or -1 where the path is too long for a socket. */
static inline int mps_path_address(struct sockaddr_un *out, const char *pipe, const char *name)
{
	*out = (struct sockaddr_un){.sun_family = AF_UNIX};
	int n = snprintf(out->sun_path, sizeof out->sun_path, "%s/%s", pipe, name);
	return n < 0 || (size_t)n >= sizeof out->sun_path ? -1 : 0;
}
#endif

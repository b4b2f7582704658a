/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of MPS: where a control daemon answers in CUDA_MPS_PIPE_DIRECTORY, its limits hold for this process, the
 * smaller of the daemon's and the environment's; where none does, the process goes on without, as the driver does.
 *
 * A process that may use P % of the multiprocessors takes 100 / P times as long for a kernel. Clients of one server
 * take turns here, and do not run side by side as on a GPU.
 */
#include "mps.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "../mps/mps.h"
#include "sim_cuda.h"

static struct {
	int control, server; /* connections, -1: no client of MPS */
	double percent;
	uint64_t limit_bytes; /* of each GPU; 0: none */
	unsigned sms;         /* of its static partition; 0: the daemon has none */
	CUresult refused;     /* what a context gets */
} mps = {.control = -1, .server = -1, .percent = 100};

static int connect_path(const char *pipe)
{
	struct sockaddr_un address;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || mps_path_address(&address, pipe, "control") < 0 ||
	    connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

static int connect_server(int pid)
{
	struct sockaddr_un address;
	socklen_t size = mps_server_address(&address, pid);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, size) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static void own_limits(void)
{
	const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	const char *memory = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	double own = percent ? atof(percent) : 0;
	unsigned gpu;
	unsigned long long value;
	char unit;

	if (own > 0 && own < mps.percent && !mps.sms)
		mps.percent = own;
	if (memory && sscanf(memory, "%u=%llu%c", &gpu, &value, &unit) == 3 && (unit == 'G' || unit == 'M')) {
		uint64_t bytes = (uint64_t)value << (unit == 'G' ? 30 : 20);
		if (!mps.limit_bytes || bytes < mps.limit_bytes)
			mps.limit_bytes = bytes;
	}
}

CUresult sim_mps_connect(void)
{
	const char *pipe = getenv(MPS_PIPE_VARIABLE), *partition = getenv("CUDA_MPS_SM_PARTITION");
	char text[MPS_LINE];
	size_t used = 0;
	int pid, priority, code;
	unsigned long long bytes;

	/* The default directory is left out: a machine of this simulation is not the whole computer. */
	mps.control = pipe && *pipe ? connect_path(pipe) : -1;
	if (mps.control < 0)
		return CUDA_SUCCESS;
	int length = snprintf(text, sizeof text, "CLIENT %.256s\n", partition ? partition : "");
	if (send(mps.control, text, (size_t)length, MSG_NOSIGNAL) != length)
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	while (used < sizeof text && recv(mps.control, text + used, 1, 0) == 1 && text[used])
		used++;
	if (used == sizeof text ||
	    sscanf(text, "SERVER %d %lf %d %llu %u", &pid, &mps.percent, &priority, &bytes, &mps.sms) != 5) {
		if (sscanf(text, "ERROR %d", &code) != 1)
			return CUDA_ERROR_MPS_CONNECTION_FAILED;
		if (code != CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)
			return (CUresult)code;
		mps.refused = code; /* cuInit succeeds: NVIDIA says that a context fails */
		return CUDA_SUCCESS;
	}
	mps.limit_bytes = bytes;
	own_limits();
	mps.server = connect_server(pid);
	return mps.server < 0 ? CUDA_ERROR_MPS_SERVER_NOT_READY : CUDA_SUCCESS;
}

CUresult sim_mps_check(void)
{
	char mark;

	if (mps.server < 0)
		return CUDA_SUCCESS;
	ssize_t n = recv(mps.server, &mark, 1, MSG_PEEK | MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN ? CUDA_SUCCESS : CUDA_ERROR_MPS_RPC_FAILURE;
	return n == 1 && mark == MPS_TERMINATED ? CUDA_ERROR_MPS_CLIENT_TERMINATED
						: CUDA_ERROR_MPS_RPC_FAILURE;
}

CUresult sim_mps_context(void)
{
	return mps.refused;
}

uint64_t sim_mps_ns(uint64_t alone_ns)
{
	return mps.server < 0 ? alone_ns : (uint64_t)((double)alone_ns * 100 / mps.percent);
}

uint32_t sim_mps_sms(uint32_t sms)
{
	uint32_t part = mps.sms ? mps.sms : (uint32_t)((double)sms * mps.percent / 100);

	return mps.server < 0 ? sms : part > 1 ? part : 1;
}

bool sim_mps_fits(uint64_t held_bytes, uint64_t more_bytes)
{
	if (mps.server < 0 || !mps.limit_bytes)
		return true;
	return more_bytes <= mps.limit_bytes && held_bytes <= mps.limit_bytes - more_bytes;
}

void sim_mps_fork_child(void)
{
	if (mps.server >= 0)
		close(mps.server);
	if (mps.control >= 0)
		close(mps.control);
	mps.server = mps.control = -1;
	mps.percent = 100;
	mps.sms = 0;
	mps.refused = CUDA_SUCCESS;
}

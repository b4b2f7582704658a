/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks/mps.h"

#include <stdatomic.h>

#include "base/log.h"

static atomic_flag said = ATOMIC_FLAG_INIT;

static const char *reason(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_MPS_CONNECTION_FAILED:
	case CUDA_ERROR_MPS_SERVER_NOT_READY:
		return "cannot be reached";
	case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
	case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
		return "has as many clients as it can have";
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
		return "has ended this program's work";
	default:
		return "has ended, and this program's work on the GPU with it: its own fault, one of another program of "
		       "this user on the same GPU, or hami-hpc mps restart";
	}
}

void hami_mps_say(CUresult result)
{
	if (!atomic_flag_test_and_set(&said))
		hami_log(0, "the MPS server of this job %s (CUDA error %d). Start the program again\n",
			 reason(result), (int)result);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "hooks/mps.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"

static atomic_flag said = ATOMIC_FLAG_INIT;

/* NULL: not an error of MPS. A fault in one client is told to all clients of its server, with the same code. */
static const char *reason(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_MPS_CONNECTION_FAILED:
	case CUDA_ERROR_MPS_SERVER_NOT_READY:
		return "the MPS server of this job cannot be reached";
	case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
	case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
		return "the MPS server of this job has as many clients as it can have";
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
		return "the MPS server of this job has ended this program's work";
	case CUDA_ERROR_MPS_RPC_FAILURE:
		return "the MPS server of this job has ended, and this program's work on the GPU with it";
	case CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION:
		return "the MPS server of this job gives each program the multiprocessors that CUDA_MPS_SM_PARTITION "
		       "names, and this one names none that are there; leave that variable as the step has it";
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
		return "a kernel of this program, or of another client of its MPS server, made a fault, which ends the "
		       "work of all of them";
	default:
		return NULL;
	}
}

void hami_mps_say(CUresult result)
{
	const char *text = secure_getenv("CUDA_MPS_PIPE_DIRECTORY") ? reason(result) : NULL;

	if (text && !atomic_flag_test_and_set(&said))
		hami_log(0, "%s (CUDA error %d). Start the program again\n", text, (int)result);
}

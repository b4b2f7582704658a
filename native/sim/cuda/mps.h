/* SPDX-License-Identifier: Apache-2.0 */
/* This process as a client of MPS (mps.c). Called with sim.lock held, but for sim_mps_check. */
#ifndef SIM_CUDA_MPS_H
#define SIM_CUDA_MPS_H
#include "sim_cuda.h"

/* Becomes a client if a daemon answers. An error is cuInit's. */
CUresult sim_mps_connect(void);

/* CUDA_SUCCESS, or what a client is told whose server has ended or that was terminated. */
CUresult sim_mps_check(void);

/* CUDA_SUCCESS, or why this client can have no context: it names no static SM partition that its daemon has. */
CUresult sim_mps_context(void);

/* How long a kernel takes that takes alone_ns on the whole GPU. */
uint64_t sim_mps_ns(uint64_t alone_ns);

/* How many multiprocessors a client sees. */
uint32_t sim_mps_sms(uint32_t sms);

/* Whether the process's memory limit allows more_bytes. */
bool sim_mps_fits(uint64_t held_bytes, uint64_t more_bytes);

void sim_mps_fork_child(void);
#endif

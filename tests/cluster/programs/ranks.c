/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks MIB: a rank of a parallel program. Takes MIB on its first GPU, waits until all ranks have, and prints one line:
 *
 *	rank 0 of 2 sum 3 GPU-... has 8192 free 5168
 *
 * sum: of all ranks' numbers plus one, which each says to the others; memory in MiB. By MPI (Open MPI, whose interface
 * between programs and library is declared here, so that its headers need not be there), or with -DUSE_PMI2 by PMI2
 * alone, as programs of MPICH find each other.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)

static void check(int is_well, const char *what)
{
	if (is_well)
		return;
	fprintf(stderr, "ranks: %s failed\n", what);
	exit(1);
}

#ifdef USE_PMI2
#include <slurm/pmi2.h>

static void begin(int *rank, int *size)
{
	int spawned, number;
	check(PMI2_Init(&spawned, size, rank, &number) == PMI2_SUCCESS, "PMI2_Init");
}

static void wait_for_all(void)
{
	check(PMI2_KVS_Fence() == PMI2_SUCCESS, "PMI2_KVS_Fence");
}

static long sum_of_all(int rank, int size)
{
	char key[32], value[32], job[PMI2_MAX_KEYLEN];
	int length;
	long sum = 0;
	check(PMI2_Job_GetId(job, sizeof job) == PMI2_SUCCESS, "PMI2_Job_GetId");
	snprintf(key, sizeof key, "rank-%d", rank);
	snprintf(value, sizeof value, "%d", rank + 1);
	check(PMI2_KVS_Put(key, value) == PMI2_SUCCESS, "PMI2_KVS_Put");
	wait_for_all();
	for (int other = 0; other < size; other++) {
		snprintf(key, sizeof key, "rank-%d", other);
		check(PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof value, &length) == PMI2_SUCCESS,
		      "PMI2_KVS_Get");
		sum += atol(value);
	}
	return sum;
}

static void end(void)
{
	check(PMI2_Finalize() == PMI2_SUCCESS, "PMI2_Finalize");
}
#else
extern char ompi_mpi_comm_world[], ompi_mpi_long[], ompi_mpi_op_sum[];
int MPI_Init(int *, char ***);
int MPI_Comm_rank(void *, int *);
int MPI_Comm_size(void *, int *);
int MPI_Barrier(void *);
int MPI_Allreduce(const void *, void *, int, void *, void *, void *);
int MPI_Finalize(void);

static void begin(int *rank, int *size)
{
	check(!MPI_Init(NULL, NULL), "MPI_Init");
	check(!MPI_Comm_rank(ompi_mpi_comm_world, rank), "MPI_Comm_rank");
	check(!MPI_Comm_size(ompi_mpi_comm_world, size), "MPI_Comm_size");
}

static void wait_for_all(void)
{
	check(!MPI_Barrier(ompi_mpi_comm_world), "MPI_Barrier");
}

static long sum_of_all(int rank, int size)
{
	long own = rank + 1, sum = 0;
	(void)size;
	check(!MPI_Allreduce(&own, &sum, 1, ompi_mpi_long, ompi_mpi_op_sum, ompi_mpi_comm_world),
	      "MPI_Allreduce");
	return sum;
}

static void end(void)
{
	check(!MPI_Finalize(), "MPI_Finalize");
}
#endif

int main(int argc, char **argv)
{
	int rank, size;
	size_t left, total;
	CUdevice device;
	CUcontext context;
	CUdeviceptr memory;
	CUuuid uuid;
	check(argc == 2, "reading the command line");
	begin(&rank, &size);
	check(!cuInit(0) && !cuDeviceGet(&device, 0), "cuDeviceGet");
	check(!cuDeviceGetUuid(&uuid, device) && !cuDevicePrimaryCtxRetain(&context, device), "a context");
	check(!cuCtxSetCurrent(context) && !cuMemAlloc(&memory, (size_t)atol(argv[1]) * MIB), "cuMemAlloc");
	long sum = sum_of_all(rank, size);
	check(!cuMemGetInfo(&left, &total), "cuMemGetInfo");
	wait_for_all();
	printf("rank %d of %d sum %ld GPU-", rank, size, sum);
	for (size_t i = 0; i < sizeof uuid.bytes; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		       (unsigned char)uuid.bytes[i]);
	printf(" has %zu free %zu\n", total / MIB, left / MIB);
	fflush(stdout);
	wait_for_all();
	end();
	return 0;
}

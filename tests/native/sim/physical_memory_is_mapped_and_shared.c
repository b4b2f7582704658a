/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <sys/socket.h>

static const size_t SIZE = 64 * 1024 * 1024;
static int sockets[2];

static CUmemAllocationProp properties(void)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				     .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
}

static CUdeviceptr map_somewhere(CUmemGenericAllocationHandle handle)
{
	CUdeviceptr address;
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cuMemAddressReserve(&address, SIZE, 0, 0, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(address, 1, 1)); /* nothing is there yet */
	OK(cuMemMap(address, SIZE, 0, handle, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(address, 1, 1)); /* and now it may not be touched */
	OK(cuMemSetAccess(address, SIZE, &access, 1));
	return address;
}

static void unmap(CUdeviceptr address)
{
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(address, SIZE));
	OK(cuMemUnmap(address, SIZE));
	OK(cuMemAddressFree(address, SIZE));
}

static void one_handle_in_two_places(void)
{
	CUmemGenericAllocationHandle handle, again;
	CUmemAllocationProp p = properties();
	size_t granularity, before = free_memory();
	unsigned value = 0;
	OK(cuMemGetAllocationGranularity(&granularity, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CHECK(granularity == 2 * MIB);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, SIZE + 1, &p, 0));
	OK(cuMemCreate(&handle, SIZE, &p, 0));
	CHECK(before - free_memory() == SIZE);
	CUdeviceptr a = map_somewhere(handle), b = map_somewhere(handle);
	OK(cuMemsetD32(a + 4096, 77, 1));
	OK(cuMemcpyDtoH(&value, b + 4096, sizeof value));
	CHECK(value == 77);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(a + 5)));
	CHECK(again == handle);
	OK(cuMemRelease(again));
	OK(cuMemRelease(handle));
	unmap(a);
	CHECK(before - free_memory() == SIZE); /* the second mapping still holds it */
	unmap(b);
	CHECK(free_memory() == before);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, free_memory() + 2 * MIB, &p, 0));
}

static void send_fd(int fd)
{
	char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
	struct iovec data = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	CHECK(sendmsg(sockets[0], &message, 0) == 1);
}

static int receive_fd(void)
{
	int fd;
	char control[CMSG_SPACE(sizeof fd)], byte;
	struct iovec data = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	CHECK(recvmsg(sockets[1], &message, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

static void exporter(void *unused)
{
	(void)unused;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp p = properties();
	int fd;
	open_device();
	OK(cuMemCreate(&handle, SIZE, &p, 0));
	OK(cuMemsetD32(map_somewhere(handle), 4711, 1));
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_fd(fd);
	pause();
}

static void another_process_holds_it_too(void)
{
	CUmemGenericAllocationHandle handle;
	unsigned value = 0;
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	size_t before = free_memory();
	pid_t pid = start_child(exporter, NULL);
	int fd = receive_fd();
	OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CHECK(before - free_memory() == SIZE + 512 * MIB); /* counted once, however many hold it */
	kill(pid, SIGKILL);
	child_status(pid);
	CHECK(before - free_memory() == SIZE); /* the creator is dead and the memory still in use */
	CUdeviceptr a = map_somewhere(handle);
	OK(cuMemcpyDtoH(&value, a, sizeof value));
	CHECK(value == 4711);
	OK(cuMemRelease(handle));
	unmap(a);
	CHECK(free_memory() == before);
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	GIVES(CUDA_ERROR_INVALID_VALUE,
	      cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)0,
					     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

int main(void)
{
	make_machine("h200");
	open_device();
	one_handle_in_two_places();
	another_process_holds_it_too();
	return 0;
}

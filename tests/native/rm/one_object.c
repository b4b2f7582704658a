/* SPDX-License-Identifier: Apache-2.0 */
/* PAGE BYTES: asks for so many bytes of device memory in pages of kind PAGE (NVOS32_ATTR_PAGE_SIZE). */
#include "client.h"

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	struct rm_memory p = {.size = strtoull(argv[2], NULL, 10),
			      .attributes = (uint32_t)atoi(argv[1]) << 23};
	open_client();
	CHECK(make(rm.device, 0, RM_CLASS_DEVICE_MEMORY, &p, sizeof p));
	return 0;
}

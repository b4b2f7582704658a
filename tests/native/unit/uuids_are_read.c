/* SPDX-License-Identifier: Apache-2.0 */
#include "base/uuid.h"

#include <string.h>

#include "check.h"

int main(void)
{
	static const unsigned char wanted[HAMI_UUID_BYTES] = {0x1b, 0x4e, 0x28, 0xba, 0x2f, 0xa1, 0x11, 0xd2,
							      0x88, 0x3f, 0x00, 0x16, 0xd3, 0xcc, 0xa4, 0x27};
	static const char *const good[] = {"GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427",
					   "MIG-1B4E28BA-2FA1-11D2-883F-0016D3CCA427"};
	static const char *const bad[] = {"",
					  "GPU-",
					  "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca42",
					  "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca4271",
					  "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca42g",
					  "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca42 "};
	unsigned char bytes[HAMI_UUID_BYTES];
	for (size_t i = 0; i < sizeof good / sizeof *good; i++)
		CHECK(hami_uuid_read(good[i], bytes) && memcmp(bytes, wanted, sizeof wanted) == 0);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		CHECK(!hami_uuid_read(bad[i], bytes));
	return 0;
}

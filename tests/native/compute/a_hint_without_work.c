/* SPDX-License-Identifier: Apache-2.0 */
/*
 * a_hint_without_work COUNT [capture]: says COUNT times in its context that a request comes, and launches nothing; with capture amid a stream
 * capture, which has to be whole afterwards. Then in another context, after the first is gone.
 */
#include "../../../native/include/hami_hpc.h"
#include "../interposer/check.h"

static void hint(int count)
{
	for (int i = 0; i < count; i++) {
		CHECK(hami_hint_begin(0) == 0);
		CHECK(hami_hint_soon() == 0);
		usleep(1000);
		CHECK(hami_hint_end() == 0);
	}
}

int main(int argc, char **argv)
{
	CUcontext another;
	CUstream stream;
	CUgraph graph;
	CHECK(argc >= 2);
	const int count = atoi(argv[1]);
	start();
	if (argc > 2) {
		OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
		hint(count);
		OK(cuStreamEndCapture(stream, &graph));
		OK(cuCtxSynchronize());
		return 0;
	}
	hint(count);
	OK(cuCtxCreate(&another, NULL, 0, 0));
	hint(count);
	OK(cuCtxDestroy(another));
	hint(count);
	OK(cuCtxSynchronize());
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong with a GPU while programs run, put in from outside (sim-state --xid, --fail). */
#include "state.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static void tell(struct sim_state *s)
{
	__atomic_fetch_add(&s->news, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &s->news, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void sim_put_xid(struct sim_view *v, uint32_t gpu, uint32_t code)
{
	v->state->xid[v->state->xids++ % SIM_MAX_XIDS] = (struct sim_xid){.gpu = gpu, .code = code};
	tell(v->state);
}

void sim_set_nvml_error(struct sim_view *v, uint32_t gpu, int32_t code)
{
	__atomic_store_n(&v->state->gpu[gpu].nvml_error, code, __ATOMIC_RELEASE);
	tell(v->state);
}

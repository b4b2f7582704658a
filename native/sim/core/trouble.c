/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong with a GPU while programs run, put in from outside (sim-state --xid, --fail and so on). */
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

/* As in nvml.h, which the core does not include. */
enum { EVENT_ECC_SINGLE = 1, EVENT_ECC_DOUBLE = 2, EVENT_XID = 8 };

static void put(struct sim_view *v, struct sim_xid event)
{
	v->state->xid[v->state->xids++ % SIM_MAX_XIDS] = event;
	tell(v->state);
}

void sim_put_xid(struct sim_view *v, uint32_t gpu, uint32_t code)
{
	put(v, (struct sim_xid){.gpu = gpu, .code = code, .type = EVENT_XID});
}

void sim_put_ecc(struct sim_view *v, uint32_t gpu, uint32_t bits)
{
	put(v, (struct sim_xid){.gpu = gpu, .type = bits > 1 ? EVENT_ECC_DOUBLE : EVENT_ECC_SINGLE});
}

void sim_set_trouble(struct sim_view *v, uint32_t gpu, uint32_t mask, uint32_t trouble)
{
	uint32_t now = __atomic_load_n(&v->state->gpu[gpu].trouble, __ATOMIC_ACQUIRE);
	__atomic_store_n(&v->state->gpu[gpu].trouble, (now & ~mask) | (trouble & mask), __ATOMIC_RELEASE);
}

void sim_set_nvml_error(struct sim_view *v, uint32_t gpu, int32_t code)
{
	__atomic_store_n(&v->state->gpu[gpu].nvml_error, code, __ATOMIC_RELEASE);
	tell(v->state);
}

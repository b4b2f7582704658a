/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of the interposer in a forked child. This is the one file that calls pthread_atfork and the
 * fork handlers of the modules: each module with a lock, or with anything else that is the parent's alone,
 * has a handler, and is listed here.
 *
 * The locks, outermost first; a thread takes them only in this order:
 *
 *	gates[].lock      over the driver's calls for the events of this process, which may make ioctls
 *	share.lock        over the creation of its threads
 *	contexts[].lock   over nothing else; not held while libcuda is asked
 *	lookup.lock       over nothing else
 *	resolved.lock     over nothing else
 *	region->join      over the region's own lock, which is in memory that the job's processes share: a
 *	                  child holds it as little as any other process, and recovers it as they do
 *	objects.lock      over the locks of the table's shards
 *	shards[].lock     over nothing else
 *	movables.lock     over nothing else
 *
 * Only gates[].lock is held while the driver is called, and none while the loader is. Of the locks that there
 * are one of for each slice (gates, contexts, region->join, the region's own), no thread holds two.
 */
#include <pthread.h>

#include "base/log.h"
#include "base/table.h"
#include "driver/movable.h"
#include "driver/resolve.h"
#include "driver/rm_objects.h"
#include "driver/switches.h"
#include "hooks/capture.h"
#include "hooks/hint.h"
#include "hooks/lookup.h"
#include "limits/announce.h"
#include "limits/ending.h"
#include "limits/gate.h"
#include "limits/hold.h"
#include "limits/kernel_copy.h"
#include "limits/latency.h"
#include "limits/launched.h"
#include "limits/meter.h"
#include "limits/outstanding.h"
#include "limits/placeholder.h"
#include "limits/probe.h"
#include "limits/share.h"
#include "limits/swap.h"
#include "limits/trim.h"
#include "region/clients.h"
#include "region/process.h"

/* Runs in the child, as its only thread: any other thread of the parent may have held any of the locks. */
static void forked(void)
{
	hami_swap_forked();
	hami_hold_forked();
	hami_trim_forked();
	hami_kernel_copy_forked();
	hami_capture_forked();
	hami_hint_forked();
	hami_gate_forked();
	hami_share_forked();
	hami_ending_forked();
	hami_latency_forked();
	hami_announce_forked();
	hami_launched_forked();
	hami_placeholder_forked();
	hami_probe_forked();
	hami_meter_forked();
	hami_switches_forked();
	hami_known_forked();
	hami_lookup_forked();
	hami_resolve_forked();
	hami_clients_forked();
	hami_process_forked();
	hami_movable_forked();
	hami_objects_forked();
	hami_table_forked();
}

/* Runs at load, before any of the locks can be taken. */
__attribute__((constructor)) static void watch_forks(void)
{
	int rc = pthread_atfork(NULL, NULL, forked);
	if (rc)
		hami_log(0, "no memory to watch forks by; a forked child that uses the GPU may hang\n");
}

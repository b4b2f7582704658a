/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/server.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "driver/rm_objects.h"
#include "driver/switches.h"
#include "limits/channels.h"
#include "region/clients.h"

/* An opening may wait for a request, and for a processor. */
#define LATE_NS 20000000ll
#define LOOK_NS 5000000ll    /* between two looks at the others */
#define AGAIN_NS 500000000ll /* until what was resumed, and still is not said to be open, is resumed again */

static struct {
	int64_t paused_until;  /* as was said last */
	uint32_t timeslice_us; /* that too */
	uint32_t others_us;    /* the shortest that another one wants; UINT32_MAX: any */
	int64_t looked;
	int64_t resumed[HAMI_CLIENTS_MOST]; /* when, by the place of their entries */
} server = {.others_us = UINT32_MAX};

/* Fills in the channels that a pause will name. Returns whether there is room for all. */
static bool list_channels(unsigned int slice, struct hami_client *own)
{
	long count;
	struct hami_target *channels = hami_objects_channels(slice, &count);
	const bool fits = count >= 0 && count <= (long)HAMI_CLIENT_CHANNELS_MOST;
	for (long i = 0; fits && i < count; i++) {
		own->channels[i].client = channels[i].client;
		own->channels[i].channel = channels[i].object;
	}
	own->count = fits ? (uint32_t)count : 0;
	free(channels);
	return fits;
}

static bool say(unsigned int slice, int64_t paused_until)
{
	struct hami_client own = {.version = HAMI_CLIENT_VERSION,
				  .pid = hami_switches_own_pid(slice),
				  .paused_until = paused_until,
				  .timeslice_us = server.timeslice_us};
	if (paused_until && !list_channels(slice, &own))
		return false;
	server.paused_until = paused_until;
	return hami_clients_write(&own);
}

bool hami_server_pauses(unsigned int slice, int64_t until)
{
	return hami_clients_join() && say(slice, until);
}

/* Resumes channels of one that is late. One that goes on then says so itself, or pauses them until another time. */
static void resume(unsigned int slice, const struct hami_client *other, int64_t now)
{
	uint32_t clients[HAMI_CLIENT_CHANNELS_MOST], channels[HAMI_CLIENT_CHANNELS_MOST];
	int64_t *resumed = &server.resumed[other->place];
	if (*resumed > other->paused_until && now >= *resumed && now - *resumed < AGAIN_NS)
		return;
	for (uint32_t i = 0; i < other->count; i++) {
		clients[i] = other->channels[i].client;
		channels[i] = other->channels[i].channel;
	}
	int rc = hami_channels_resume_others(slice, clients, channels, other->count);
	if (rc == -ENOENT)
		return; /* this process has none of its own yet */
	*resumed = now;
	hami_log(2, "resumed channels of another client of the MPS server, which is late (%d)\n", rc);
}

bool hami_server_opens(unsigned int slice, int64_t now)
{
	struct hami_client others[HAMI_CLIENTS_MOST];
	uint32_t pids[HAMI_CLIENTS_MOST], shortest = UINT32_MAX;
	if (now - server.looked < LOOK_NS && now >= server.looked && !server.paused_until)
		return false;
	if (!hami_clients_join() || !say(slice, 0))
		return false;
	server.looked = now;
	const size_t count = hami_clients_read(others);
	for (size_t i = 0; i < count; i++) {
		const uint32_t us = others[i].timeslice_us;
		pids[i] = others[i].pid;
		if (us >= HAMI_CLASS_SLICE_US_MIN && us < shortest)
			shortest = us;
		if (others[i].paused_until && others[i].count && others[i].paused_until < now - LATE_NS)
			resume(slice, &others[i], now);
	}
	hami_switches_set_fellows(slice, pids, count);
	const bool changed = shortest != server.others_us;
	server.others_us = shortest;
	return changed;
}

uint32_t hami_server_timeslice(unsigned int slice, uint32_t wanted)
{
	const bool changed = wanted != server.timeslice_us;
	server.timeslice_us = wanted;
	if (changed && hami_clients_join())
		say(slice, server.paused_until);
	return wanted < server.others_us ? wanted : server.others_us;
}

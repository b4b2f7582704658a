/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/rm_objects.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/table.h"
#include "rm_abi.h"

#define FIRST_BUCKETS 64

enum kind { CLIENT, DEVICE, SUBDEVICE, GROUP, CHANNEL, DUPLICATE, SERVERS_DUPLICATE, SERVERS_GROUP };

struct hami_object {
	uint64_t key;
	struct hami_object *chain; /* in its bucket */
	struct hami_object *parent, *children, *next, **link;
	struct hami_object *next_started, **started; /* not NULL: at work */
	struct at_work *among;                       /* those at work that it is one of */
	struct hami_object *subdevice;               /* a device's: one of its children */
	enum kind kind;
	int fd, slice;
	uint32_t engine;
	uint64_t context; /* of a group, or a channel without one */
};

static struct {
	pthread_mutex_t lock;
	struct hami_object **buckets;
	size_t bucket_count; /* a power of two */
	size_t count;
	struct at_work {
		struct hami_object *first;
		_Atomic int count;
		_Atomic unsigned int ever;
	} work[HAMI_SLICES], copies[HAMI_SLICES]; /* on the compute engine; on those that copy */
} objects = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool hami_objects_is_client(uint32_t class_id)
{
	return class_id == RM_CLASS_CLIENT || class_id <= 1;
}

bool hami_objects_is_work(uint32_t class_id)
{
	return class_id == RM_CLASS_GROUP ||
	       (class_id > 0xff && (class_id & 0xff) == RM_CLASS_CHANNEL_LOW_BYTE);
}

bool hami_objects_keep(uint32_t class_id)
{
	return hami_objects_is_work(class_id) || class_id == RM_CLASS_DEVICE ||
	       class_id == RM_CLASS_SUBDEVICE || hami_objects_is_client(class_id);
}

static enum kind kind_of(uint32_t class_id)
{
	return hami_objects_is_client(class_id) ? CLIENT
	       : class_id == RM_CLASS_DEVICE    ? DEVICE
	       : class_id == RM_CLASS_SUBDEVICE ? SUBDEVICE
	       : class_id == RM_CLASS_GROUP     ? GROUP
						: CHANNEL;
}

void hami_object_drop(struct hami_object *object)
{
	free(object);
}

static size_t bucket_of(uint64_t key)
{
	return (size_t)((key ^ key >> 32) * 0x9e3779b97f4a7c15u >> 32) & (objects.bucket_count - 1);
}

static struct hami_object *find(uint64_t key)
{
	struct hami_object *o = objects.bucket_count ? objects.buckets[bucket_of(key)] : NULL;
	while (o && o->key != key)
		o = o->chain;
	return o;
}

/* Doubles the buckets when they are full. Without memory for that the chains get longer, which costs time. */
static bool make_room(void)
{
	size_t old_count = objects.bucket_count;
	struct hami_object **old = objects.buckets;
	if (objects.count < old_count)
		return true;
	size_t wanted = old_count ? 2 * old_count : FIRST_BUCKETS;
	struct hami_object **buckets = calloc(wanted, sizeof(struct hami_object *));
	if (!buckets)
		return old_count != 0;
	objects.buckets = buckets;
	objects.bucket_count = wanted;
	for (size_t i = 0; i < old_count; i++) {
		for (struct hami_object *o = old[i], *next; o; o = next) {
			next = o->chain;
			o->chain = buckets[bucket_of(o->key)];
			buckets[bucket_of(o->key)] = o;
		}
	}
	free(old);
	return true;
}

struct hami_object *hami_object_new(void)
{
	struct hami_object *object = calloc(1, sizeof *object);
	pthread_mutex_lock(&objects.lock);
	bool room = object && make_room();
	pthread_mutex_unlock(&objects.lock);
	if (room)
		return object;
	free(object);
	return NULL;
}

static void put(struct hami_object *o)
{
	o->chain = objects.buckets[bucket_of(o->key)];
	objects.buckets[bucket_of(o->key)] = o;
	objects.count++;
}

static void hang_below(struct hami_object *o, struct hami_object *parent)
{
	o->parent = parent;
	o->next = parent->children;
	if (o->next)
		o->next->link = &o->next;
	o->link = &parent->children;
	parent->children = o;
	if (o->kind == SUBDEVICE && parent->kind == DEVICE && !parent->subdevice)
		parent->subdevice = o;
}

static void take_off(struct hami_object *o)
{
	struct hami_object *parent = o->parent;
	if (!parent)
		return;
	*o->link = o->next;
	if (o->next)
		o->next->link = o->link;
	if (parent->subdevice == o) {
		parent->subdevice = NULL;
		for (struct hami_object *c = parent->children; c && !parent->subdevice; c = c->next)
			if (c->kind == SUBDEVICE)
				parent->subdevice = c;
	}
}

static bool start(struct hami_object *o, struct at_work *at_work)
{
	if (o->started || o->slice < 0)
		return false;
	at_work += o->slice;
	o->among = at_work;
	o->next_started = at_work->first;
	if (o->next_started)
		o->next_started->started = &o->next_started;
	o->started = &at_work->first;
	at_work->first = o;
	at_work->count++;
	at_work->ever++;
	return true;
}

static void stop(struct hami_object *o)
{
	if (!o->started)
		return;
	*o->started = o->next_started;
	if (o->next_started)
		o->next_started->started = o->started;
	o->among->count--;
}

/* Forgets `o`, which has no children, and the memory that belongs to it. */
static void bury(struct hami_object *o, struct hami_sums *sums)
{
	struct hami_object **at = &objects.buckets[bucket_of(o->key)];
	while (*at != o)
		at = &(*at)->chain;
	*at = o->chain;
	objects.count--;
	take_off(o);
	stop(o);
	if (o->kind == DEVICE || o->kind == SUBDEVICE)
		hami_table_take_owner(o->key, sums);
	free(o);
}

/* Forgets `o` and all below it. The depth is the driver's: client, device, group, channel. */
static void bury_tree(struct hami_object *o, struct hami_sums *sums)
{
	while (o->children)
		bury_tree(o->children, sums);
	bury(o, sums);
}

void hami_objects_free(uint64_t key, struct hami_sums *sums)
{
	bool client = (uint32_t)key == key >> 32;
	*sums = (struct hami_sums){0};
	pthread_mutex_lock(&objects.lock);
	struct hami_object *o = find(key);
	if (o)
		bury_tree(o, sums);
	if (client)
		hami_table_take_client((uint32_t)key, sums);
	pthread_mutex_unlock(&objects.lock);
}

/* Returns what something is that has a channel below it. */
static enum kind as_group(enum kind kind)
{
	return kind == DUPLICATE ? GROUP : kind == SERVERS_DUPLICATE ? SERVERS_GROUP : kind;
}

void hami_objects_add(struct hami_object *o, const struct hami_made *made)
{
	const uint32_t client = (uint32_t)(made->key >> 32);
	struct hami_sums gone = {0}; /* stays charged until the process ends */
	o->key = made->key;
	o->kind = made->duplicate == HAMI_DUPLICATE_OF_SERVER ? SERVERS_DUPLICATE
		  : made->duplicate                           ? DUPLICATE
							      : kind_of(made->class_id);
	o->fd = made->fd;
	o->engine = made->engine;
	o->context = made->context;
	pthread_mutex_lock(&objects.lock);
	struct hami_object *stale = find(o->key);
	if (stale)
		bury_tree(stale, &gone); /* its client went with its descriptor */
	struct hami_object *above = o->kind == CLIENT ? NULL : find(made->parent);
	if (!above && o->kind != CLIENT)
		above = find(hami_object_key(client, client));
	o->slice = o->kind == DEVICE || !above ? made->slice : above->slice;
	put(o);
	if (above)
		hang_below(o, above);
	if (above && o->kind == CHANNEL)
		above->kind = as_group(above->kind);
	pthread_mutex_unlock(&objects.lock);
}

int hami_objects_slice(uint64_t key)
{
	pthread_mutex_lock(&objects.lock);
	const struct hami_object *o = find(key);
	int slice = o ? o->slice : -1;
	pthread_mutex_unlock(&objects.lock);
	return slice;
}

int hami_objects_start(uint64_t key, bool surely)
{
	int fresh = -1;
	pthread_mutex_lock(&objects.lock);
	struct hami_object *o = find(key);
	if (o && o->kind == CHANNEL && o->parent && o->parent->kind == GROUP)
		o = o->parent;
	const bool works = o && (o->kind == GROUP || o->kind == CHANNEL);
	if (works && (surely || o->engine <= RM_ENGINE_COMPUTE_LAST) && start(o, objects.work))
		fresh = o->slice;
	else if (works && o->kind == GROUP && o->engine >= RM_ENGINE_COPY && o->engine <= RM_ENGINE_COPY_LAST)
		start(o, objects.copies);
	pthread_mutex_unlock(&objects.lock);
	return fresh;
}

int hami_objects_started(unsigned int slice)
{
	return objects.work[slice].count;
}

unsigned int hami_objects_started_ever(unsigned int slice)
{
	return objects.work[slice].ever;
}

unsigned int hami_objects_copying_ever(unsigned int slice)
{
	return objects.copies[slice].ever;
}

/* Returns the subdevice below the same device as group or channel `o`. */
static const struct hami_object *subdevice_of(const struct hami_object *o)
{
	while (o && o->kind != DEVICE)
		o = o->parent;
	return o ? o->subdevice : NULL;
}

static struct hami_target target_of(const struct hami_object *o, const struct hami_object *subdevice,
				    uint64_t context)
{
	return (struct hami_target){o->fd, (uint32_t)(o->key >> 32), (uint32_t)subdevice->key,
				    (uint32_t)o->key, context};
}

/* Returns the group of an MPS server that the channel `o` is in; NULL where it is in none. */
static const struct hami_object *servers_group(const struct hami_object *o)
{
	return o->kind == CHANNEL && o->parent && o->parent->kind == SERVERS_GROUP ? o->parent : NULL;
}

/* Counts the groups at work, or the channels below them, and writes them to `list` unless it is NULL. */
static long collect(const struct at_work *at_work, bool channels, struct hami_target *list)
{
	long count = 0;
	for (const struct hami_object *g = at_work->first; g; g = g->next_started) {
		const struct hami_object *s = subdevice_of(g);
		const struct hami_object *shared = channels ? NULL : servers_group(g);
		bool whole = !channels || g->kind == CHANNEL;
		if (shared) {
			if (s && list)
				list[count] = target_of(shared, s, g->context);
			count += s != NULL;
			continue;
		}
		for (const struct hami_object *o = whole ? g : g->children; o; o = whole ? NULL : o->next) {
			if (!s || (channels && o->kind != CHANNEL) || (!channels && o->kind != GROUP))
				continue;
			if (list)
				list[count] = target_of(o, s, g->context);
			count++;
		}
	}
	return count;
}

static struct hami_target *snapshot(const struct at_work *at_work, bool channels, long *count)
{
	struct hami_target *list = NULL;
	pthread_mutex_lock(&objects.lock);
	*count = collect(at_work, channels, NULL);
	if (*count && (list = malloc((size_t)*count * sizeof *list)))
		collect(at_work, channels, list);
	else if (*count)
		*count = -1;
	pthread_mutex_unlock(&objects.lock);
	return list;
}

bool hami_objects_of_context(unsigned int slice, uint64_t context)
{
	pthread_mutex_lock(&objects.lock);
	const struct hami_object *g = objects.work[slice].first;
	while (g && g->context != context)
		g = g->next_started;
	pthread_mutex_unlock(&objects.lock);
	return g != NULL;
}

struct hami_target *hami_objects_channels(unsigned int slice, long *count)
{
	return snapshot(&objects.work[slice], true, count);
}

struct hami_target *hami_objects_groups(unsigned int slice, long *count)
{
	return snapshot(&objects.work[slice], false, count);
}

struct hami_target *hami_objects_copying(unsigned int slice, long *count)
{
	return snapshot(&objects.copies[slice], false, count);
}

void hami_objects_forked(void)
{
	hami_lock_renew(&objects.lock);
	if (!objects.buckets && !objects.bucket_count && !objects.count)
		return;
	/* Leaves the parent's objects as they are: another thread may have been changing them. */
	objects.buckets = NULL;
	objects.bucket_count = objects.count = 0;
	for (unsigned int i = 0; i < HAMI_SLICES; i++) {
		objects.work[i].first = objects.copies[i].first = NULL;
		objects.work[i].count = objects.copies[i].count = 0;
	}
}

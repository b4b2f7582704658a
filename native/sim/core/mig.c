/* SPDX-License-Identifier: Apache-2.0 */
#include "mig.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* /proc/driver/nvidia-caps/mig-minors: two for the driver, then nine for each GPU instance, fifteen of them a GPU. */
enum { FIRST_MINOR = 3, MINORS_GI = 9, MINORS_GPU = 15 * MINORS_GI };

const struct sim_mig_profile *sim_mig_profile_of(const struct sim_view *v, uint32_t g, uint32_t gi)
{
	return &v->machine.gpu[g].mig[v->state->gpu[g].mig[gi].profile];
}

static uint64_t slices_from(uint32_t start, uint32_t size)
{
	return ((1ull << size) - 1) << start;
}

bool sim_mig_fits(const struct sim_view *v, uint32_t g, uint32_t index, uint32_t start)
{
	const struct sim_mig_profile *profile = &v->machine.gpu[g].mig[index];
	uint64_t wanted = slices_from(start, profile->size);
	uint32_t compute = sim_mig_slices(profile), alike = 0;
	if (start >= 32 || !(profile->start_set >> start & 1))
		return false;
	for (uint32_t gi = 0; gi < SIM_MIG_INSTANCES; gi++) {
		const struct sim_mig_instance *one = &v->state->gpu[g].mig[gi];
		if (!one->serial)
			continue;
		const struct sim_mig_profile *other = sim_mig_profile_of(v, g, gi);
		if (slices_from(one->start, other->size) & wanted)
			return false;
		compute += sim_mig_slices(other);
		alike += one->profile == index;
	}
	return compute <= SIM_MIG_SLICES && alike < profile->most;
}

/* The ids of instances of one size lie together: 0 for the whole GPU, then halves, quarters and eighths. */
static uint32_t first_id(uint32_t size)
{
	return size >= 8 ? 0 : size >= 4 ? 1 : size >= 2 ? 3 : 7;
}

static uint32_t minor_of(uint32_t gpu_minor, uint32_t gi, int ci)
{
	return FIRST_MINOR + gpu_minor * MINORS_GPU + gi * MINORS_GI + (uint32_t)(ci + 1);
}

static void device_path(char *out, size_t size, const struct sim_view *v, uint32_t g, uint32_t gi, int ci)
{
	snprintf(out, size, "%.2000s/dev/nvidia-caps/nvidia-cap%u", v->dir,
		 minor_of(v->machine.gpu[g].minor, gi, ci));
}

/* DIR/proc/.../gpuN/mig/giN, or ciN in it. */
static void access_dir(char *out, size_t size, const struct sim_view *v, uint32_t g, uint32_t gi, int ci)
{
	int n = snprintf(out, size, "%.2000s/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u", v->dir,
			 v->machine.gpu[g].minor, gi);
	if (ci >= 0)
		snprintf(out + n, size - (size_t)n, "/ci%d", ci);
}

static int make_parents(char *path, size_t from)
{
	for (char *p = path + from + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		int rc = mkdir(path, 0755) != 0 && errno != EEXIST ? -errno : 0;
		*p = '/';
		if (rc)
			return rc;
	}
	return 0;
}

static int write_file(char *path, size_t from, mode_t mode, const char *text)
{
	int rc = make_parents(path, from);
	if (rc)
		return rc;
	unlink(path); /* what was there may be another user's by now */
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	size_t length = strlen(text);
	if (fchmod(fd, mode) != 0 || write(fd, text, length) != (ssize_t)length)
		rc = -EIO;
	close(fd);
	return rc;
}

static int make_files(const struct sim_view *v, uint32_t g, uint32_t gi, int ci)
{
	char path[PATH_MAX], text[128];
	access_dir(path, sizeof path - 8, v, g, gi, ci);
	strcat(path, "/access");
	snprintf(text, sizeof text, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
		 minor_of(v->machine.gpu[g].minor, gi, ci));
	int rc = write_file(path, strlen(v->dir), 0444, text);
	device_path(path, sizeof path, v, g, gi, ci);
	return rc ? rc : write_file(path, strlen(v->dir), 0444, "");
}

static void remove_files(const struct sim_view *v, uint32_t g, uint32_t gi, int ci)
{
	char path[PATH_MAX];
	access_dir(path, sizeof path - 8, v, g, gi, ci);
	size_t n = strlen(path);
	strcpy(path + n, "/access");
	unlink(path);
	path[n] = '\0';
	rmdir(path);
	device_path(path, sizeof path, v, g, gi, ci);
	unlink(path);
}

int sim_mig_create(struct sim_view *v, uint32_t g, uint32_t profile, uint32_t start)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	uint32_t gi = first_id(v->machine.gpu[g].mig[profile].size);
	if (!sim_mig_fits(v, g, profile, start))
		return -ENOSPC;
	while (gi < SIM_MIG_INSTANCES && gpu->mig[gi].serial)
		gi++;
	if (gi == SIM_MIG_INSTANCES)
		return -ENOSPC;
	int rc = make_files(v, g, gi, -1);
	if (rc)
		return rc;
	gpu->mig[gi] = (struct sim_mig_instance){.profile = profile, .start = start};
	/* The last store: who is killed before it has made nothing. */
	__atomic_store_n(&gpu->mig[gi].serial, ++v->state->mig_made, __ATOMIC_RELEASE);
	return (int)gi;
}

int sim_mig_destroy(struct sim_view *v, uint32_t g, uint32_t gi)
{
	struct sim_mig_instance *one = &v->state->gpu[g].mig[gi];
	for (uint32_t ci = 0; ci < SIM_MIG_SLICES; ci++)
		if (one->compute_slices[ci])
			return -EBUSY;
	one->serial = 0;
	remove_files(v, g, gi, -1);
	return 0;
}

int sim_mig_create_compute(struct sim_view *v, uint32_t g, uint32_t gi, uint32_t slices)
{
	struct sim_mig_instance *one = &v->state->gpu[g].mig[gi];
	uint32_t used = 0, ci = SIM_MIG_SLICES;
	for (uint32_t i = SIM_MIG_SLICES; i--;) {
		used += one->compute_slices[i];
		ci = one->compute_slices[i] ? ci : i;
	}
	if (used + slices > sim_mig_slices(sim_mig_profile_of(v, g, gi)) || ci == SIM_MIG_SLICES)
		return -ENOSPC;
	int rc = make_files(v, g, gi, (int)ci);
	if (rc)
		return rc;
	one->compute_slices[ci] = slices;
	return (int)ci;
}

static bool runs_in(struct sim_view *v, uint32_t g, uint32_t device)
{
	const struct sim_state *s = v->state;
	sim_sweep(v);
	for (uint32_t i = sim_bit_next(s->live, 0); i != SIM_NO_SLOT; i = sim_bit_next(s->live, i + 1))
		if (s->slot[i].mig[g] == device)
			return true;
	return false;
}

int sim_mig_destroy_compute(struct sim_view *v, uint32_t g, uint32_t gi, uint32_t ci)
{
	if (runs_in(v, g, sim_mig_device(gi, ci)))
		return -EBUSY;
	v->state->gpu[g].mig[gi].compute_slices[ci] = 0;
	remove_files(v, g, gi, (int)ci);
	return 0;
}

bool sim_mig_exists(const struct sim_view *v, uint32_t g, uint32_t device, uint64_t serial)
{
	const struct sim_mig_instance *one = &v->state->gpu[g].mig[sim_mig_gi(device)];
	return one->serial && (!serial || one->serial == serial) && one->compute_slices[sim_mig_ci(device)];
}

bool sim_mig_in_use(struct sim_view *v, uint32_t g)
{
	const struct sim_state *s = v->state;
	sim_sweep(v);
	for (uint32_t i = sim_bit_next(s->live, 0); i != SIM_NO_SLOT; i = sim_bit_next(s->live, i + 1))
		if (s->slot[i].mig[g] || s->slot[i].gpu[g].contexts || s->slot[i].gpu[g].used_bytes)
			return true;
	return false;
}

uint64_t sim_mig_used_in(const struct sim_view *v, uint32_t g, uint32_t gi)
{
	const struct sim_state *s = v->state;
	uint64_t used = 0;
	for (uint32_t i = sim_bit_next(s->live, 0); i != SIM_NO_SLOT; i = sim_bit_next(s->live, i + 1))
		if (s->slot[i].mig[g] && sim_mig_gi(s->slot[i].mig[g]) == gi)
			used += s->slot[i].gpu[g].used_bytes;
	return used;
}

uint64_t sim_mig_used(const struct sim_view *v, uint32_t g)
{
	uint32_t own = v->slot == SIM_NO_SLOT ? 0 : v->state->slot[v->slot].mig[g];
	return own ? sim_mig_used_in(v, g, sim_mig_gi(own)) : v->state->gpu[g].used_bytes;
}

uint64_t sim_mig_total(const struct sim_view *v, uint32_t g)
{
	uint32_t own = v->slot == SIM_NO_SLOT ? 0 : v->state->slot[v->slot].mig[g];
	return own ? sim_mib(sim_mig_profile_of(v, g, sim_mig_gi(own))->memory_mib)
		   : sim_cuda_total(&v->machine.gpu[g]);
}

static uint64_t mix(uint64_t h, uint64_t with)
{
	h = (h ^ with) * 0x9e3779b97f4a7c15ull;
	return h ^ h >> 29;
}

void sim_mig_uuid(const struct sim_view *v, uint32_t g, uint32_t device, char uuid[48], char hex[33])
{
	uint64_t serial = v->state->gpu[g].mig[sim_mig_gi(device)].serial, a = 1;
	for (const char *p = v->machine.gpu[g].uuid; *p; p++)
		a = mix(a, (unsigned char)*p);
	a = mix(mix(a, device), serial);
	uint64_t b = mix(a, serial + device);
	a = (a & ~0xf000ull) | 0x5000;
	if (uuid)
		snprintf(uuid, 48, "MIG-%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%012" PRIx64,
			 a >> 32, a >> 16 & 0xffff, a & 0xffff, b >> 48, b & 0xffffffffffff);
	if (hex)
		snprintf(hex, 33, "%016" PRIx64 "%016" PRIx64, a, b);
}

bool sim_mig_may_open(const struct sim_view *v, uint32_t g, uint32_t device)
{
	char path[PATH_MAX];
	device_path(path, sizeof path, v, g, sim_mig_gi(device), -1);
	if (access(path, R_OK) != 0)
		return false;
	device_path(path, sizeof path, v, g, sim_mig_gi(device), (int)sim_mig_ci(device));
	return access(path, R_OK) == 0;
}

void sim_mig_restart(struct sim_view *v)
{
	for (uint32_t g = 0; g < v->machine.gpu_count; g++) {
		struct sim_gpu *gpu = &v->state->gpu[g];
		for (uint32_t gi = 0; gi < SIM_MIG_INSTANCES; gi++) {
			for (int ci = SIM_MIG_SLICES; ci-- > -1 && gpu->mig[gi].serial;)
				remove_files(v, g, gi, ci);
			gpu->mig[gi] = (struct sim_mig_instance){0};
		}
		gpu->mig_mode = gpu->mig_pending = v->machine.gpu[g].cc_major < 9 && gpu->mig_pending;
	}
}

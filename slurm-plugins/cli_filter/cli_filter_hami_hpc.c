// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cli_filter/hami_hpc: looks in sbatch, salloc and srun whether the options of a command can concern hami_hpc at all. If
 * not, nothing else happens. A plain vgpu request of sbatch is put into the form that Slurm's client accepts (token.h); what
 * it means is job_submit's to say. For any other it loads Slurm's own cli_filter/lua, which runs cli_filter.lua: that script
 * knows what a request means, and refuses the command or changes its options as with CliFilterPlugins=lua.
 *
 * Slurm's cli_filter/lua costs each command more than a millisecond, whatever its script does: it reads the directory of
 * all plugins, loads a JSON serializer and starts Lua (docs/benchmarks/submit.md). A site with rules of its own in
 * cli_filter.lua, which have to see every command, keeps CliFilterPlugins=lua (docs/adr/083).
 */
#include <stdbool.h>
#include <string.h>

#include "slurm/slurm.h"
#include "slurm/slurm_errno.h"

/* Must be the first internal header: it renames Slurm's functions to the names that its programs export. */
#include "src/common/slurm_xlator.h"

#include "src/common/log.h"
#include "src/common/plugin.h"
#include "src/common/slurm_opt.h"
#include "src/common/xmalloc.h"

#include "hami_contract.h"
#include "token.h"

/*
 * Slurm ends every sbatch and srun where a plugin of CliFilterPlugins does not load, and it compares the version of each
 * plugin with its own to the micro release; of those of type spank it compares the release alone (_verify_syms in plugin.c,
 * 22.05 to 26.05), and it finds this file by its name. So this is of type spank: a login host whose Slurm is a micro release
 * newer than this file submits jobs as before. In return this file uses nothing of Slurm whose layout could differ: the
 * options by their names, and the first four members of slurm_opt_t, the same from 22.05 to 26.05.
 */
const char plugin_name[] = "hami_hpc: hands vgpu requests to cli_filter/lua";
const char plugin_type[] = "spank";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

/* Slurm looks these up by name (cli_filter_ops_t). */
int cli_filter_p_setup_defaults(slurm_opt_t *options, bool is_early);
int cli_filter_p_pre_submit(slurm_opt_t *options, int offset);
void cli_filter_p_post_submit(int offset, uint32_t job_id, uint32_t step_id);

/* The options in which a vgpu request may stand: OPTIONS in hami_hpc.lua. */
static const char *const OPTIONS[] = {"gres",          "gpus",         "gpus-per-node", "gpus-per-socket",
				      "gpus-per-task", "tres-per-task"};

enum concern {
	NONE,
	SRUN, /* srun asks for something that may be bare shards or GPUs of a type, which are translated for its step */
	VGPU, /* names a vgpu, or one of its units, in letters of any case */
};

static bool is_srun(const slurm_opt_t *options)
{
	return options->srun_opt && !options->salloc_opt && !options->sbatch_opt && !options->scron_opt;
}

static enum concern concern_of(slurm_opt_t *options)
{
	bool has_any = false, has_vgpu = false;

	for (size_t i = 0; i < sizeof(OPTIONS) / sizeof(OPTIONS[0]); i++) {
		char *value = slurm_option_get(options,
					       OPTIONS[i]); /* NULL: not given, or not known to this Slurm */

		has_any |= value != NULL;
		has_vgpu |= value && strcasestr(value, HAMI_GRES_CLASS);
		xfree(value);
	}
	if (has_vgpu)
		return VGPU;
	return has_any && is_srun(options) ? SRUN : NONE;
}

/* Options that Slurm takes for jobs with gres/gpu alone: the script says what to do instead. */
static const char *const PER_GPU[] = {"cpus-per-gpu", "mem-per-gpu", "ntasks-per-gpu", "gpu-freq"};

static bool is_sbatch(const slurm_opt_t *options)
{
	return options->sbatch_opt && !options->salloc_opt && !options->srun_opt && !options->scron_opt;
}

/* Returns whether an option is given; of numbers, 0 and NO_VAL are not. */
static bool is_given(slurm_opt_t *options, const char *name)
{
	char *value = slurm_option_get(options, name);
	bool given = value && strcmp(value, "0") != 0 && strcmp(value, "-2") != 0;

	xfree(value);
	return given;
}

/* Puts the request of an sbatch that has a plain one, and nothing else of a GPU, into Slurm's form. Else returns false. */
static bool set_plain(slurm_opt_t *options)
{
	char token[TOKEN_MAX], *value;
	bool plain = is_sbatch(options);

	for (size_t i = 1; i < sizeof(OPTIONS) / sizeof(OPTIONS[0]); i++)
		plain = plain && !is_given(options, OPTIONS[i]);
	for (size_t i = 0; i < sizeof(PER_GPU) / sizeof(PER_GPU[0]); i++)
		plain = plain && !is_given(options, PER_GPU[i]);
	if (!plain)
		return false;
	value = slurm_option_get(options, OPTIONS[0]);
	plain = value && token_of(value, token) &&
		slurm_option_set(options, OPTIONS[0], token, false) == SLURM_SUCCESS;
	xfree(value);
	return plain;
}

typedef int pre_submit_function(slurm_opt_t *options, int offset);

/* Returns the function of Slurm's cli_filter/lua, or NULL where that did not load; Slurm has printed why. */
static pre_submit_function *load_lua(void)
{
	static const char *names[] = {"cli_filter_p_pre_submit"};
	static pre_submit_function *pre_submit; /* a command with several components (":") asks for each */
	void *functions[1];

	if (!pre_submit &&
	    plugin_load_and_link("cli_filter/lua", 1, names, functions) != PLUGIN_INVALID_HANDLE)
		pre_submit = (pre_submit_function *)functions[0];
	return pre_submit;
}

int cli_filter_p_setup_defaults(slurm_opt_t *options, bool is_early)
{
	(void)options;
	(void)is_early;
	return SLURM_SUCCESS;
}

/* Any other result than SLURM_SUCCESS ends the command. */
int cli_filter_p_pre_submit(slurm_opt_t *options, int offset)
{
	enum concern concern = concern_of(options);

	if (concern == NONE || (concern == VGPU && set_plain(options)))
		return SLURM_SUCCESS;

	pre_submit_function *lua = load_lua();

	if (lua)
		return lua(options, offset);
	if (concern != VGPU)
		return SLURM_SUCCESS;
	error("hami_hpc: vgpu requests cannot be checked on this host, because Slurm's cli_filter/lua does not load here; "
	      "other jobs are not affected. Tell the administrator: hami-hpc doctor says what is missing");
	return SLURM_ERROR;
}

void cli_filter_p_post_submit(int offset, uint32_t job_id, uint32_t step_id)
{
	(void)offset;
	(void)job_id;
	(void)step_id;
}

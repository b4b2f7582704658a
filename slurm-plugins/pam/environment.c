// SPDX-License-Identifier: GPL-2.0-or-later
#include "environment.h"

#include <slurm/slurm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <syslog.h>

static void free_list(char **list)
{
	for (char **at = list; at && *at; at++)
		free(*at);
	free(list);
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	char *text = NULL;
	int rc = PAM_BUF_ERR;

	if (!overwrite && pam_getenv(spank->pamh, name))
		return ESPANK_ENV_EXISTS;
	if (asprintf(&text, "%s=%s", name, value) >= 0) {
		rc = pam_putenv(spank->pamh, text);
		free(text);
	}
	return rc == PAM_SUCCESS ? ESPANK_SUCCESS : ESPANK_ERROR;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
	if (pam_getenv(spank->pamh, name))
		pam_putenv(spank->pamh, name);
	return ESPANK_SUCCESS;
}

/* Only S_JOB_ENV. */
spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list arguments;

	if (item != S_JOB_ENV)
		return ESPANK_BAD_ARG;
	free_list(spank->env);
	spank->env = pam_getenvlist(spank->pamh);
	va_start(arguments, item);
	*va_arg(arguments, char ***) = spank->env;
	va_end(arguments);
	return spank->env ? ESPANK_SUCCESS : ESPANK_ERROR;
}

const char *spank_strerror(spank_err_t error)
{
	return error == ESPANK_SUCCESS ? "no error" : "PAM has not taken it";
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsyslog(LOG_AUTHPRIV | LOG_ERR, format, arguments);
	va_end(arguments);
}

void environment_end(spank_t spank)
{
	free_list(spank->env);
	spank->env = NULL;
}

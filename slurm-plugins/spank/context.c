// SPDX-License-Identifier: GPL-2.0-or-later
#include "context.h"

#include <stdarg.h>
#include <stdio.h>

void context_refuse(struct step_context *step, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(step->refusal, sizeof(step->refusal), format, arguments);
	va_end(arguments);
}

int context_set_env(struct step_context *step, spank_t spank, const char *name, const char *value)
{
	spank_err_t rc = value ? spank_setenv(spank, name, value, 1) : ESPANK_ERROR;

	if (rc == ESPANK_SUCCESS)
		return 0;
	context_refuse(
		step,
		"%s could not be set in its environment (%s). Submit the job again; if that does not help, "
		"tell the administrator",
		name, spank_strerror(rc));
	return -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules and functions. Any image will do: it is not looked into, and has every function that is asked for; but of PTX
 * only those whose entry it has.
 * A function called sim_spin_ns keeps the GPU busy for its first argument, a u64 of nanoseconds;
 * hami_hpc_work (native/measure) for so many loops at the model's clock; any other for the model's kernel_ns. hami_kernel_copy
 * (native/interposer/limits/kernel_copy.c) copies.
 */
#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool valid_module(const struct CUmod_st *m)
{
	return m && m->magic == SIM_MODULE_MAGIC;
}

bool sim_function_valid(const struct CUfunc_st *f)
{
	return f && f->magic == SIM_FUNCTION_MAGIC;
}

static CUresult load(struct CUmod_st **out, const void *image)
{
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	struct CUmod_st *m = calloc(1, sizeof *m);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->magic = SIM_MODULE_MAGIC;
	if (strncmp(image, ".version", 8) == 0)
		m->text = strdup(image);
	*out = m;
	return CUDA_SUCCESS;
}

static CUresult unload(struct CUmod_st *m)
{
	if (!valid_module(m))
		return CUDA_ERROR_INVALID_HANDLE;
	m->magic = 0;
	while (m->functions) {
		struct CUfunc_st *f = m->functions;
		m->functions = f->next;
		f->magic = 0;
		free(f);
	}
	free(m->text);
	free(m);
	return CUDA_SUCCESS;
}

static bool has_entry(const struct CUmod_st *m, const char *name)
{
	char entry[sizeof m->functions->name + sizeof ".entry ("];
	snprintf(entry, sizeof entry, ".entry %s(", name);
	return !m->text || strstr(m->text, entry);
}

static CUresult get_function(struct CUfunc_st **out, struct CUmod_st *m, const char *name)
{
	if (!out || !name || strlen(name) >= sizeof m->functions->name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!valid_module(m))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!*name || !has_entry(m, name))
		return CUDA_ERROR_NOT_FOUND;
	sim_process_lock();
	struct CUfunc_st *f = m->functions;
	while (f && strcmp(f->name, name) != 0)
		f = f->next;
	if (!f && (f = calloc(1, sizeof *f))) {
		f->magic = SIM_FUNCTION_MAGIC;
		f->module = m;
		memcpy(f->name, name, strlen(name) + 1);
		f->spins = strcmp(name, "sim_spin_ns") == 0;
		f->works = strcmp(name, "hami_hpc_work") == 0;
		f->copies = strcmp(name, "hami_kernel_copy") == 0;
		f->next = m->functions;
		m->functions = f;
	}
	sim_process_unlock();
	*out = f;
	return f ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	SIM_ENTER_CONTEXT(cuModuleLoadData, c);
	(void)c;
	return load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
			    void **values)
{
	SIM_ENTER_CONTEXT(cuModuleLoadDataEx, c);
	(void)c;
	if (count && (!options || !values))
		return CUDA_ERROR_INVALID_VALUE;
	return load(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	SIM_ENTER_CONTEXT(cuModuleLoadFatBinary, c);
	(void)c;
	return load(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	SIM_ENTER_CONTEXT(cuModuleLoad, c);
	(void)c;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	return access(path, R_OK) == 0 ? load(module, path) : CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult cuModuleUnload(CUmodule module)
{
	SIM_ENTER_CONTEXT(cuModuleUnload, c);
	(void)c;
	return unload(module);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	SIM_ENTER_CONTEXT(cuModuleGetFunction, c);
	(void)c;
	return get_function(function, module, name);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
	SIM_ENTER_CONTEXT(cuModuleGetGlobal_v2, c);
	(void)c;
	(void)address;
	(void)size;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	return valid_module(module) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	SIM_ENTER(cuModuleGetLoadingMode);
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}

/* A library is a module that belongs to no context, and a kernel is its function. */
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
			   unsigned int jit_count, CUlibraryOption *options, void **values,
			   unsigned int count)
{
	SIM_ENTER(cuLibraryLoadData);
	if ((jit_count && (!jit || !jit_values)) || (count && (!options || !values)))
		return CUDA_ERROR_INVALID_VALUE;
	return load((struct CUmod_st **)library, code);
}

CUresult cuLibraryUnload(CUlibrary library)
{
	SIM_ENTER(cuLibraryUnload);
	return unload((struct CUmod_st *)library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	SIM_ENTER(cuLibraryGetKernel);
	return get_function((struct CUfunc_st **)kernel, (struct CUmod_st *)library, name);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	SIM_ENTER(cuLibraryGetModule);
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	*module = (struct CUmod_st *)library;
	return valid_module(*module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	SIM_ENTER(cuKernelGetFunction);
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	*function = (struct CUfunc_st *)kernel;
	return sim_function_valid(*function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
	SIM_ENTER(cuFuncGetModule);
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_function_valid(function))
		return CUDA_ERROR_INVALID_HANDLE;
	*module = function->module;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
	SIM_ENTER(cuFuncGetName);
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_function_valid(function))
		return CUDA_ERROR_INVALID_HANDLE;
	*name = function->name;
	return CUDA_SUCCESS;
}

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A hook of enroot, for pyxis too: the limits of a vGPU job hold in its containers. Link it into /etc/enroot/hooks.d.
# In a job without limits the list is not there (docs/containers.md).
set -eu

list=/run/hami-hpc/self/container.mounts
[ ! -e "$list" ] || cat "$list" >>"$ENROOT_MOUNTS"

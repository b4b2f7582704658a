# SPDX-License-Identifier: Apache-2.0
"""The state of a compute node, kept by root: settings, ledger, job directories, usage spool, mounts, NVML."""

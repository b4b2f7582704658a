# SPDX-License-Identifier: Apache-2.0
"""What a compute node holds and knows, as root: settings, ledger, job directories, usage spool, mounts, NVML."""

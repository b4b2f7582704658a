# SPDX-License-Identifier: Apache-2.0
"""The agent: one process of root per node that watches the GPUs from outside the jobs' processes."""

# SPDX-License-Identifier: Apache-2.0
"""A private single-node Slurm with accounting and simulated GPUs, for the demo and the cluster tests.

Everything it writes lies in one cluster directory (.cluster, .cluster-test) and one directory under /tmp that
unprivileged users can read. It touches no Slurm, munge or database that is already on the machine.
"""

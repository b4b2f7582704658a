# SPDX-License-Identifier: Apache-2.0
"""A private single-node Slurm with accounting and simulated GPUs, for the demo and the cluster tests.

It writes only to one cluster directory (.cluster, .cluster-test) and to one directory below /tmp that unprivileged
users can read. It does not touch a Slurm, munge or database that is already on the machine.
"""

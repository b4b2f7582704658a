# SPDX-License-Identifier: Apache-2.0
"""Reads Slurm through its commands and configuration files on this machine."""

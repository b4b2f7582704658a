# SPDX-License-Identifier: Apache-2.0
"""Isolation of a slice of a GPU on a node: one module for each mode, listed in table.py."""

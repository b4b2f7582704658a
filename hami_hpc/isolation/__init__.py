# SPDX-License-Identifier: Apache-2.0
"""How a node isolates a slice of a GPU: one module for each mode, named in table.py."""

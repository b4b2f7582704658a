# SPDX-License-Identifier: Apache-2.0
"""Accounting: what jobs held (sacct), what they used (the usage spool), and what that costs."""

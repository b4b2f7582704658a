# SPDX-License-Identifier: Apache-2.0
"""The store of job and usage records: reading into it, and the tables that it gives."""

# SPDX-License-Identifier: Apache-2.0
"""Writes documents as text tables, CSV, JSON, HTML and PDF."""

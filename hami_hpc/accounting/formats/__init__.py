# SPDX-License-Identifier: Apache-2.0
"""Documents as text tables, CSV, JSON, HTML and PDF."""

# SPDX-License-Identifier: Apache-2.0
"""Accounting: what jobs held (sacct), what they used (the usage spool), and what that costs.

Its packages are layers; each imports only those before it (tests/unit/test_accounting/test_layers.py):

    sources     what is read: sacct and pyslurm, Slurm's notations, the nodes' usage records
    store       job and usage records in Parquet files, and reading into them
    pricing     how much of the GPUs each run held, and what that costs
    documents   bill, invoice, monthly report, efficiency, comparison with sreport
    formats     documents as text tables, CSV, JSON, HTML and PDF

errors.py and times.py are for all of them.
"""

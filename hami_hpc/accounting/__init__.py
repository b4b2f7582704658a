# SPDX-License-Identifier: Apache-2.0
"""Accounting: the GPU time that jobs held (sacct), what they used of it (the usage spool), and what it costs.

Its packages are layers; each imports only those before it (tests/unit/test_accounting/test_layers.py):

    sources     read sacct and pyslurm, Slurm's notations, the nodes' usage records
    store       keeps job and usage records in Parquet files
    pricing     computes how much of the GPUs each run held, and what that costs
    documents   bill, invoice, monthly report, efficiency, comparison with sreport
    formats     documents as text tables, CSV, JSON, HTML and PDF

errors.py and times.py are for all of them.
"""

# SPDX-License-Identifier: Apache-2.0
"""The store of job and usage records: writes records into it and provides tables of them."""

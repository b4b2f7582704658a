# SPDX-License-Identifier: Apache-2.0
"""Makes documents from priced records: bill, invoice, monthly report, efficiency, comparison with sreport."""

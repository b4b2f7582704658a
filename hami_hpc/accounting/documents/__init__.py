# SPDX-License-Identifier: Apache-2.0
"""What is made of priced records: bill, invoice, monthly report, efficiency, comparison with sreport."""

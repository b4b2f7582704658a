# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of a node, made from the agent's state file alone. Only `exposition` imports prometheus-client."""

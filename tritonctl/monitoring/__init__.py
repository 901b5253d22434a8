# SPDX-License-Identifier: Apache-2.0
"""Monitoring of a deployment as data: Prometheus' configuration and rules, Grafana's dashboard."""

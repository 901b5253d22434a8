# SPDX-License-Identifier: Apache-2.0
"""What watches a deployment: Prometheus' configuration, its rules, Grafana's dashboard. Data."""

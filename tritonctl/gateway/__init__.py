# SPDX-License-Identifier: Apache-2.0
"""Envoy in front of Triton's replicas: its configuration, made from the project."""

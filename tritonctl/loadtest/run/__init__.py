# SPDX-License-Identifier: Apache-2.0
"""Runs a load test: plan, generator processes, samples of the server, the folder of a run."""

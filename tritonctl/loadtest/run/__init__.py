# SPDX-License-Identifier: Apache-2.0
"""Run a load test: plan, generator processes, server samples, run folder."""

# SPDX-License-Identifier: Apache-2.0
"""The only place that prints: the voice, and live views of builds, load tests, tuning and top."""

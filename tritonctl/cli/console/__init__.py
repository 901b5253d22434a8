# SPDX-License-Identifier: Apache-2.0
"""All terminal output: the console, and live views of builds, load tests, tuning and top."""

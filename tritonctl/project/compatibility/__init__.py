# SPDX-License-Identifier: Apache-2.0
"""Compatibility of releases, GPUs, precisions and fields, and known vulnerabilities."""

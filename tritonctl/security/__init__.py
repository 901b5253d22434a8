# SPDX-License-Identifier: Apache-2.0
"""Certificates, and whether what is served is what was built."""

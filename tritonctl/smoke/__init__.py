# SPDX-License-Identifier: Apache-2.0
"""Asks a running Triton, any Triton, a few valid requests and judges what comes back."""

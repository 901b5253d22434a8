# SPDX-License-Identifier: Apache-2.0
"""Triton's gRPC and HTTP protocol: channels, the client, model control, inspection, metrics."""

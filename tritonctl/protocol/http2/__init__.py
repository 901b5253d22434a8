# SPDX-License-Identifier: Apache-2.0
"""gRPC calls of one request over HTTP/2, in the event loop: no threads, no waking of them."""

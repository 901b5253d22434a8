# SPDX-License-Identifier: Apache-2.0
"""gRPC calls with one request over HTTP/2, without gRPC's threads.

frames.py encodes and decodes, connection.py is the state machine of a connection, call.py the one
of a call. channel.py runs them in an event loop, blocking.py in threads.
"""

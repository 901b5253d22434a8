# SPDX-License-Identifier: Apache-2.0
"""Compare the answers of both releases to copies of user requests, outside the request path.

Envoy copies a share of the requests to this process (`gateway/mirror.py`) and does not wait for it.
The shadower sends each to stable twice and to the candidate once, to know stable's own noise.

    listening        receive copies: HTTP/1.1 on a socket, for every protocol
    questions        turn a copy into a request: gRPC, `rest_requests`, the frontend (`openai`)
    capacity_probe   whether a server has capacity for a shadow request
    answers          send one request to one version
    shadower         the queue, the three requests, the limits
    comparison_log   lines of numbers for the judge; `recording` stores prompts if requested
    comparing        the results for the page
    process          start and stop the process, from `config`
"""

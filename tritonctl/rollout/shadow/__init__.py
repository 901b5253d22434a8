# SPDX-License-Identifier: Apache-2.0
"""What users ask is asked of both releases, off their path: do the answers differ?

Envoy copies a share of the requests to this process (`server/gateway/mirror.py`), and nobody waits
for it. It asks stable twice and the candidate once, so that what stable does to itself is known.

    listening    copies come in: HTTP/1.1 on a socket, whatever they were
    questions    what a copy asks: of gRPC, of `rest`, of the frontend (`openai`)
    room         whether the servers have room for a question that nobody waits for
    answers      one question to one version
    shadower     the queue, the three questions, the bounds
    found        lines of numbers for the judge; `recording` of prompts, where asked for
    comparing    what was found, for the page
    process      starts and ends it, from `config`
"""

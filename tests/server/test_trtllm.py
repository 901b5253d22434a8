# SPDX-License-Identifier: Apache-2.0
"""trtllm_engine in a real Triton, over the stand-in of TensorRT-LLM: what goes beyond the suite.

Every case of tests/conformance runs against it too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tritonctl.errors import RequestRejectedError
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.protocol.metrics import Metrics, scrape
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

PROMPT = "7342 in English:"
ANSWER = " seven thousand three hundred forty-two"
PATIENCE = 30.0


@pytest.fixture
def server(trtllm_server: Server) -> Server:
    """An engine of release 1.2.1."""
    return trtllm_server


@pytest.fixture
def client(server: Server) -> Iterator[TritonClient]:
    """A client of it."""
    with TritonClient(server.grpc_url) as client:
        yield client


def wait_for(server: Server, holds: Callable[[Metrics], bool]) -> None:
    """Until the engine's own metrics say so."""
    deadline = time.monotonic() + PATIENCE
    while not holds(scrape(server.metrics_url)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_adapters(client: TritonClient) -> None:
    """By name, one request with and one without."""
    plain = client.generate("speller", PROMPT)
    french = client.generate("speller", PROMPT, SamplingParameters(lora_name="french"))
    assert plain.text == ANSWER
    assert french.text != ANSWER
    with pytest.raises(RequestRejectedError, match="lora_name is 'dutch', the model has french"):
        client.generate("speller", PROMPT, SamplingParameters(lora_name="dutch"))


def test_guides(client: TritonClient) -> None:
    """The answer conforms."""
    sampling = SamplingParameters(
        guided_decoding_guide_type="regex", guided_decoding_guide="( one| eight hundred)"
    )
    assert client.generate("speller", PROMPT, sampling).text in {" one", " eight hundred"}


def test_a_client_that_goes_away_frees_the_runtime(server: Server, client: TritonClient) -> None:
    """Aborted there: no stream is active and no block is in use, long before its budget."""
    endless = SamplingParameters(end_id=-1, max_tokens=490)
    before = scrape(server.metrics_url).total("tritonctl_requests_total", outcome="cancelled")
    next(client.stream("speller", PROMPT, endless))  # dropping the iterator cancels the call
    wait_for(
        server,
        lambda m: m.total("tritonctl_requests_total", outcome="cancelled") == before + 1,
    )
    wait_for(server, lambda m: m.total("tritonctl_active_streams") == 0)
    wait_for(server, lambda m: m.total("tritonctl_kv_blocks", state="used") == 0)
    assert client.generate("speller", PROMPT).text == ANSWER


def test_metrics_of_the_cache(server: Server, client: TritonClient) -> None:
    """From the runtime's own statistics."""
    long = " ".join([PROMPT] * 12)
    for _ in range(2):
        client.generate("speller", long, SamplingParameters(max_tokens=4))
    wait_for(
        server,
        lambda m: m.total("tritonctl_prefix_cache_blocks_total", outcome="reused") > 0,
    )
    metrics = scrape(server.metrics_url)
    assert metrics.total("tritonctl_prefix_cache_blocks_total", outcome="missed") > 0
    assert metrics.total("tritonctl_kv_blocks", state="free") > 0

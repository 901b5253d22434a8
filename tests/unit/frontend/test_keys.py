# SPDX-License-Identifier: Apache-2.0
"""Whose request is this: keys in files, the gateway's word, and what clients say of themselves."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tritonctl.frontend.budgets.keys import GATEWAY_HEADER, RELOAD_SECONDS, TENANT_HEADER, Keys
from tritonctl.frontend.budgets.tenant import ALL_CLIENTS, TenantLimits

ALICE, BOB = TenantLimits("alice"), TenantLimits("bob")
KEY, OTHER, SECRET = "a" * 64, "b" * 64, "s" * 64


class Door:
    """Keys of Alice and Bob, and a gateway's secret; time stands still unless told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 0.0
        self.write("alice", KEY)
        self.write("bob", OTHER)
        self.write("gateway", SECRET)
        tenants = {"alice": ALICE, "bob": BOB}
        files = {name: folder / name for name in tenants}
        self.keys = Keys(tenants, files, folder / "gateway", lambda: self.now)

    def write(self, name: str, key: str) -> None:
        """A key's file."""
        (self.folder / name).write_text(f"{key}\n", encoding="utf-8")

    def ask(self, **headers: str) -> TenantLimits | None:
        """With these headers."""
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.keys.tenant_of([(key.encode(), told[key].encode("latin-1")) for key in told])


@pytest.fixture
def door(tmp_path: Path) -> Door:
    """A fresh one."""
    return Door(tmp_path)


def test_a_key_in_either_header(door: Door) -> None:
    """As the gateway takes it; nothing else will do."""
    assert door.ask(x_api_key=KEY) is ALICE
    assert door.ask(authorization=f"Bearer {OTHER}") is BOB
    assert door.ask(authorization=f"bearer   {OTHER} ") is BOB
    for stranger in ("", "a" * 63, KEY.upper(), "a" * 5000, "ä" * 64, "alice"):
        assert door.ask(x_api_key=stranger) is None
        assert door.ask(authorization=f"Bearer {stranger}") is None
        assert door.ask(authorization=f"Basic {KEY}") is None
    assert door.ask() is None


def test_two_keys_are_none(door: Door) -> None:
    """What two proxies would read differently is refused."""
    twice = [(b"x-api-key", KEY.encode()), (b"x-api-key", OTHER.encode())]
    assert door.keys.tenant_of(twice) is None
    bearers = [(b"authorization", f"Bearer {key}".encode()) for key in (KEY, KEY)]
    assert door.keys.tenant_of(bearers) is None


def test_a_client_cannot_choose_its_tenant(door: Door) -> None:
    """The tenant's header counts beside the gateway's secret alone."""
    assert door.ask(x_tritonctl_tenant="bob") is None
    assert door.ask(x_tritonctl_tenant="bob", x_api_key=KEY) is ALICE
    for secret in ("", "s" * 63, KEY):
        asked = {"x_tritonctl_tenant": "bob", "x_tritonctl_gateway": secret}
        assert door.ask(**asked) is None
        assert door.ask(**asked, x_api_key=KEY) is ALICE


def test_the_gateway_s_word(door: Door) -> None:
    """With its secret, a tenant of the table, named once."""
    assert door.ask(x_tritonctl_tenant="bob", x_tritonctl_gateway=SECRET) is BOB
    assert door.ask(x_tritonctl_tenant="mallory", x_tritonctl_gateway=SECRET) is None
    assert door.ask(x_tritonctl_gateway=SECRET) is None
    said = (GATEWAY_HEADER, SECRET.encode())
    names = [(TENANT_HEADER, b"alice"), (TENANT_HEADER, b"bob")]
    assert door.keys.tenant_of([said, *names]) is None
    assert door.keys.tenant_of([said, said, names[0]]) is None


def test_without_a_secret_no_gateway_is_known(tmp_path: Path) -> None:
    """An empty secret file does not make the empty header right."""
    (tmp_path / "alice").write_text(KEY)
    (tmp_path / "empty").write_text("\n")
    for secret in (None, tmp_path / "empty", tmp_path / "absent"):
        keys = Keys({"alice": ALICE}, {"alice": tmp_path / "alice"}, secret)
        headers = [(TENANT_HEADER, b"alice"), (GATEWAY_HEADER, b"")]
        assert keys.tenant_of(headers) is None


def test_files_are_read_again(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """A new key counts two seconds later at most; a file that is gone refuses its tenant alone."""
    caplog.set_level(logging.WARNING)
    assert door.ask(x_api_key=KEY) is ALICE
    door.write("alice", "c" * 64)
    (door.folder / "bob").unlink()
    door.now += RELOAD_SECONDS
    assert door.ask(x_api_key=KEY) is None
    assert door.ask(x_api_key="c" * 64) is ALICE
    assert door.ask(x_api_key=OTHER) is None
    assert "tenant bob is refused" in caplog.text
    assert OTHER not in caplog.text


def test_a_key_of_two_tenants_is_nobody_s(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """Whom it meant cannot be told."""
    door.write("bob", KEY)
    assert door.ask(x_api_key=KEY) is None
    assert "another tenant" in caplog.text
    assert KEY not in caplog.text


def test_without_tenants_it_is_open() -> None:
    """As the gateway is."""
    assert Keys({}, {}).tenant_of([]) is ALL_CLIENTS

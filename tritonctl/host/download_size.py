# SPDX-License-Identifier: Apache-2.0
"""How much an installation will download, as the package indexes tell it (PEP 503, 691, 700).

An estimate: it takes the newest wheel that fits each requirement, follows dependencies where an
index has the metadata apart from the wheel (PEP 658), and knows nothing of the installer's cache.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.parser import HeaderParser
from html import unescape
from urllib.parse import unquote, urljoin, urlsplit

from packaging.markers import UndefinedEnvironmentName, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from tritonctl.host.installer import Sources
from tritonctl.host.interpreters import Interpreter

_SECONDS = 10.0
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_AT_ONCE = 4  # some mirrors keep those who ask for more at once waiting
_LINK = re.compile(r'<a\s[^>]*?href="([^"#]+)([^>]*)>\s*([^<]+?)\s*</a>', re.IGNORECASE)


@dataclass(frozen=True)
class DownloadSize:
    """Bytes of the packages whose size an index tells, how many these are, and the others.

    least: some dependencies could not be followed.
    """

    known: int
    packages: int
    untold: int
    least: bool


@dataclass(frozen=True)
class _File:
    """On an index, or here; metadata: whether these can be had without it."""

    name: str
    url: str
    size: int | None
    metadata: bool


def download_size(
    installs: Iterable[tuple[bool, Sequence[str]]],
    python: Interpreter,
    sources: Sources,
    torch: tuple[Sequence[str], str] | None = None,
) -> DownloadSize | None:
    """What the requirements need; None where no index answers in time, or none tells sizes.

    installs: whether dependencies are followed, and requirements, for each `pip install`. torch:
    requirements that come from an index of their own.
    """
    found: list[DownloadSize] = []

    def search() -> None:
        with suppress(OSError, ValueError):  # certificates that are none, a proxy that is none
            found.append(_Search(python, sources).whole(list(installs), torch))

    thread = threading.Thread(target=search, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return found[0] if found and (found[0].known or not found[0].untold) else None


class _Search:
    """Asks the indexes for each package once."""

    def __init__(self, python: Interpreter, sources: Sources) -> None:
        major_minor = python.version[:2]
        tags = [*cpython_tags(major_minor), *compatible_tags(major_minor)]
        self._ranks: dict[Tag, int] = {tag: rank for rank, tag in enumerate(tags)}
        self._marks: dict[str, str] = {
            **{name: str(value) for name, value in default_environment().items()},
            "python_version": python.minor,
            "python_full_version": ".".join(map(str, python.version)),
        }
        self._sources = sources
        proxies = {"http": sources.proxy, "https": sources.proxy} if sources.proxy else None
        trust = ssl.create_default_context(cafile=sources.certificates)
        self._least = False
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=trust)
        ).open

    def whole(
        self,
        installs: list[tuple[bool, Sequence[str]]],
        torch: tuple[Sequence[str], str] | None,
    ) -> DownloadSize:
        """Level by level: what is asked for, then what that needs."""
        special, index = torch or ((), None)
        own: dict[str, str | None] = {
            canonicalize_name(Requirement(one).name): index for one in special
        }
        level: dict[str, tuple[Requirement, bool]] = {}
        for follow, requirements in installs:
            for requirement in self._wanted(requirements, ""):
                name: str = canonicalize_name(requirement.name)
                before = level.get(name, (requirement, False))
                level[name] = (before[0], before[1] or follow)
        sizes: dict[str, int | None] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while level:
                sizes |= dict.fromkeys(level)
                answers = pool.map(
                    lambda one: self._one(one[1][0], own.get(one[0]), follow=one[1][1]),
                    level.items(),
                )
                further: dict[str, tuple[Requirement, bool]] = {}
                for name, (size, needs) in zip(list(level), answers, strict=True):
                    sizes[name] = size
                    further |= {canonicalize_name(r.name): (r, True) for r in needs}
                level = {name: one for name, one in further.items() if name not in sizes}
        told = [size for size in sizes.values() if size is not None]
        return DownloadSize(sum(told), sum(map(bool, told)), len(sizes) - len(told), self._least)

    def _wanted(self, requirements: Iterable[str], extras: str) -> Iterator[Requirement]:
        for text in requirements:
            try:
                requirement = Requirement(text)
                mark = requirement.marker
                if mark is None or mark.evaluate({**self._marks, "extra": extras}):
                    yield requirement
            except (InvalidRequirement, UndefinedEnvironmentName):  # a URL, a file
                continue

    def _one(
        self, requirement: Requirement, index: str | None, *, follow: bool
    ) -> tuple[int | None, list[Requirement]]:
        """Bytes of a requirement's wheel, 0 for one that lies here; what it needs."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # pages of all kinds
            file = self._best(requirement, [index] if index else self._sources.indexes)
            if file:
                size = file.size if file.size is not None else self._length(file.url)
                return size, self._needs(file, requirement.extras) if follow else []
        return None, []

    def _needs(self, file: _File, extras: Iterable[str]) -> list[Requirement]:
        if not file.metadata:
            self._least = True
            return []
        text = self._get(f"{file.url}.metadata")[0].decode("utf-8", errors="replace")
        lines = HeaderParser().parsestr(text).get_all("Requires-Dist", [])
        return [need for extra in ("", *extras) for need in self._wanted(lines, extra)]

    def _best(self, requirement: Requirement, indexes: Iterable[str]) -> _File | None:
        """A wheel in a folder of `find-links`, else of the first index that has one."""
        page = f"{canonicalize_name(requirement.name)}/"
        for files in (self._here(), *(self._listed(urljoin(one, page)) for one in indexes)):
            if best := self._newest(requirement, files):
                return best
        return None

    def _newest(self, requirement: Requirement, files: Iterable[_File]) -> _File | None:
        """The newest version that is wanted, of the wheel that fits this machine best."""
        name = canonicalize_name(requirement.name)
        wanted: dict[str, bool] = {}  # a page has thousands of files, of a few versions each
        fitting: list[tuple[Version, int, _File]] = []
        for file in files:
            with suppress(IndexError, InvalidVersion, InvalidWheelFilename):  # archives of sources
                text = file.name.split("-")[1]
                if text not in wanted:
                    wanted[text] = requirement.specifier.contains(Version(text))
                if wanted[text]:
                    found, version, _, tags = parse_wheel_filename(file.name)
                    ranks = [self._ranks[tag] for tag in tags if tag in self._ranks]
                    if ranks and found == name:
                        fitting.append((version, -min(ranks), file))
        return max(fitting, key=lambda one: one[:2])[2] if fitting else None

    def _here(self) -> Iterator[_File]:
        """Wheels that nothing downloads."""
        for folder in self._sources.folders:
            with suppress(OSError):
                yield from (_File(each.name, "", 0, False) for each in folder.iterdir())

    def _listed(self, page: str) -> Iterator[_File]:
        """The files on a project's page of an index."""
        try:
            content, kind = self._get(page)
        except OSError:
            return
        if "json" in kind:
            for file in json.loads(content)["files"]:
                apart = bool(file.get("core-metadata") or file.get("data-dist-info-metadata"))
                url = urljoin(page, file["url"])
                yield _File(file["filename"], url, file.get("size"), apart)
            return
        for href, attributes, name in _LINK.findall(content.decode("utf-8", errors="replace")):
            url, apart = urljoin(page, unescape(href)), "-metadata=" in attributes
            yield _File(unescape(name), url, None, apart)

    def _get(self, url: str, method: str = "GET") -> tuple[bytes, str]:
        """Content and its type; for HEAD the length, in digits."""
        if urlsplit(url).scheme not in {"http", "https"}:
            raise OSError(f"{url} is no page of an index")
        address, password = _apart(url)
        headers = {"Accept": _ACCEPT} | ({"Authorization": password} if password else {})
        request = urllib.request.Request(address, method=method, headers=headers)  # noqa: S310
        with self._open(request, timeout=_SECONDS) as answer:
            if method == "HEAD":
                return answer.headers.get("Content-Length", "").encode(), ""
            return answer.read(), answer.headers.get("Content-Type", "")

    def _length(self, url: str) -> int | None:
        told = self._get(url, "HEAD")[0]
        return int(told) if told.isdigit() else None


def _apart(url: str) -> tuple[str, str]:
    """An address without user and password, and the header that holds them, if any."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    encoded = base64.b64encode(unquote(login).encode()).decode()
    return parts._replace(netloc=host).geturl(), f"Basic {encoded}"

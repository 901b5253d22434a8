# SPDX-License-Identifier: Apache-2.0
"""The user's kubectl: the one way to a cluster. Argument lists, JSON out, errors by their kind.

What it may do there is what the user may: no credentials are read, kept or passed on here.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tritonctl.errors import UsageError
from tritonctl.host.process import end_group
from tritonctl.server.becoming import becoming
from tritonctl.server.kubernetes.refusals import ClusterError, Reason, refusal

Object = dict[str, Any]  # of Kubernetes, as JSON

REQUEST_SECONDS = 20.0
_MARGIN_SECONDS = 10.0  # kubectl asks twice for one thing, and a plugin for credentials takes time
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_DEFAULT = "default"
_KEPT_LINES = 10  # for the error


@dataclass(frozen=True)
class Kubectl:
    """kubectl with a context and a namespace; None: those of its own configuration.

    Every method raises ClusterError (a `reason` says why), ManifestRefusedError for what the
    cluster does not take as it is written.
    """

    context: str | None = None
    namespace: str | None = None
    seconds: float = REQUEST_SECONDS  # for a request

    def __post_init__(self) -> None:
        if self.namespace is not None:
            name("--namespace", self.namespace)

    @cached_property
    def program(self) -> str:
        """Where kubectl is."""
        if found := shutil.which("kubectl"):
            return found
        raise ClusterError(
            "kubectl is not installed, and tritonctl reaches clusters through it",
            remedy="install it (https://kubernetes.io/docs/tasks/tools/), within one minor version "
            "of the cluster; then `kubectl version`",
            reason=Reason.NO_KUBECTL,
        )

    @property
    def flags(self) -> str:
        """Context and namespace as a user types them, with a space before: for messages."""
        given = (("--context", self.context), ("--namespace", self.namespace))
        return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value)

    @cached_property
    def own_namespace(self) -> str:
        """The namespace that is asked."""
        if self.namespace:
            return self.namespace
        view = self.json("config", "view", "--minify")
        contexts = view.get("contexts") or [{}]
        return str((contexts[0].get("context") or {}).get("namespace") or _DEFAULT)

    def command(self, *arguments: str, timeout: bool = True) -> list[str]:
        """The whole command line; without `timeout` for what goes on, as logs that are followed."""
        options = [f"--request-timeout={self.seconds:g}s"] if timeout else []
        if self.context is not None:
            options.append(f"--context={self.context}")
        if self.namespace is not None:
            options.append(f"--namespace={self.namespace}")
        return [self.program, *options, *arguments]

    def run(self, *arguments: str, stdin: str | None = None, seconds: float | None = None) -> str:
        """What it prints on standard output. seconds: for all of it, where it waits for more."""
        status, out, err = self._ask(arguments, stdin, seconds)
        if status != 0:
            raise refusal(err or out, flags=self.flags)
        return out

    def json(self, *arguments: str, stdin: str | None = None) -> Object:
        """What it prints as JSON."""
        text = self.run(*arguments, "--output=json", stdin=stdin)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ClusterError(
                f"`kubectl {shlex.join(arguments)}` printed no JSON: {text[:100]!r}",
                remedy="`kubectl version` shows whether that is kubectl",
                reason=Reason.OTHER,
                details=text[-2000:],
            )
        return answer

    def get(
        self, kind: str, *, selector: Mapping[str, str] | None = None, everywhere: bool = False
    ) -> list[Object]:
        """Objects of a kind (`pods`, `hpa.v2beta2.autoscaling`) with these labels.

        A namespace that does not exist has no objects: `require_namespace` tells.
        """
        options = ["--all-namespaces"] if everywhere else []
        if selector:
            options.append(selecting(selector))
        return list(self.json("get", kind, *options).get("items") or [])

    def find(self, kind: str, name: str) -> Object | None:
        """One object; None where there is none of that name, or no such kind in the cluster."""
        try:
            return self.json("get", kind, _named(name))
        except ClusterError as error:
            if error.reason in (Reason.NOT_FOUND, Reason.NO_KIND):
                return None
            raise

    def apply(self, objects: Iterable[Mapping[str, Any]], *, dry_run: bool = False) -> list[Object]:
        """Make or change objects, each as it is afterwards. dry_run: the cluster only judges."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        options = ["--dry-run=server"] if dry_run else []
        answer = self.json("apply", "--filename=-", *options, stdin=json.dumps(listed))
        return list(answer["items"]) if answer.get("kind") == "List" else [answer]

    def patch(
        self,
        kind: str,
        name: str,
        change: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        how: Literal["merge", "strategic", "json"] = "merge",
    ) -> Object:
        """Change parts of an object; it as it is afterwards.

        how: `json` takes a sequence of operations, of which a `test` that fails is a conflict.
        """
        options = (f"--type={how}", f"--patch={json.dumps(change)}")
        return self.json("patch", kind, _named(name), *options)

    def delete(self, kind: str, name: str, *, seconds: float = 60) -> None:
        """Delete an object, and wait until it is gone; none of that name is no failure."""
        options = ("--ignore-not-found", f"--timeout={seconds:g}s")
        self.run("delete", kind, _named(name), *options, seconds=seconds)

    def execute(
        self, pod: str, *command: str, container: str | None = None, stdin: str | None = None
    ) -> str:
        """What a command prints in a container of a pod."""
        options = [f"--container={container}"] if container else []
        options += ["--stdin"] if stdin is not None else []
        return self.run("exec", _named(pod), *options, "--", *command, stdin=stdin)

    def may(self, verb: str, kind: str) -> bool:
        """Whether the user has a right, as `create` `deployments.apps`."""
        status, out, err = self._ask(("auth", "can-i", verb, kind, "--quiet"), None, None)
        if status == 0:
            return True
        # `no` is a status of 1 with nothing said, except for warnings about the kind.
        said = [line for line in (out + err).splitlines() if line and not _is_remark(line)]
        if status == 1 and not said:
            return False
        raise refusal(err or out, flags=self.flags)

    def require_namespace(self) -> None:
        """Raises ClusterError where it does not exist; not where the user may not look."""
        try:
            self.json("get", "namespace", self.own_namespace)
        except ClusterError as error:
            if error.reason not in (Reason.NOT_FOUND, Reason.NO_NAMESPACE):
                if error.reason is Reason.FORBIDDEN:
                    return
                raise
            raise ClusterError(
                f"the cluster has no namespace `{self.own_namespace}`",
                remedy="`kubectl get namespaces` lists them; name one: --namespace NAME",
                reason=Reason.NO_NAMESPACE,
            ) from error

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A kubectl that goes on; both its streams are in `stdout`.

        It ends with the thread that started it, however that ends (on Linux), and not by the
        terminal's Ctrl-C: what goes through it may finish.
        """
        command = self.command(*arguments, timeout=False)
        with ExitStack() as held:
            needs: list[int] = []
            if sys.platform == "linux":
                command, need = held.enter_context(becoming(command))
                needs = [need]
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,
                    pass_fds=needs,
                )
            except OSError as error:
                raise _cannot_start(self.program, error) from error

    def lines(self, *arguments: str) -> Iterator[str]:
        """What it prints, line by line, until it ends; leaving the iteration ends it."""
        process = self.start(*arguments)
        try:
            said: deque[str] = deque(maxlen=_KEPT_LINES)
            with process.stdout or io.StringIO() as lines:
                for text in lines:
                    said.append(text.rstrip("\r\n"))
                    yield said[-1]
            if process.wait() != 0:
                raise refusal("\n".join(said), flags=self.flags)
        finally:
            with suppress(OSError):
                end_group(process)

    def _ask(
        self, arguments: Sequence[str], stdin: str | None, seconds: float | None
    ) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                self.command(*arguments, timeout=seconds is None),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=(seconds or self.seconds) + _MARGIN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"`kubectl {shlex.join(arguments)}` did not end within {error.timeout:g} s",
                remedy=f"`kubectl{self.flags} cluster-info` asks the cluster by itself; a plugin "
                "that asks for a password has no terminal here: log in first",
                reason=Reason.TIMEOUT,
            ) from error
        except OSError as error:
            raise _cannot_start(self.program, error) from error
        return done.returncode, done.stdout, done.stderr.strip()


def name(option: str, value: str) -> str:
    """A name as Kubernetes takes it. Raises UsageError: it never becomes an option of kubectl."""
    if _NAME.fullmatch(value) is None:
        raise UsageError(
            f"{option} {value[:80]!r} is not a name that Kubernetes takes",
            remedy="use lower-case letters, digits and `-`, such as demo-1",
        )
    return value


def selecting(labels: Mapping[str, str], *more: str) -> str:
    """kubectl's option for objects with all of these labels; `more`: further conditions."""
    equal = [f"{key}={value}" for key, value in labels.items()]
    return f"--selector={','.join([*equal, *more])}"


def _named(value: str) -> str:
    return name("the object's name", value)


def _is_remark(line: str) -> bool:
    return line.startswith("Warning:") or line in ("no", "yes")


def _cannot_start(program: str, error: OSError) -> ClusterError:
    return ClusterError(
        f"cannot start {program}: {error.strerror}",
        remedy="`kubectl version` shows what is wrong with it",
        reason=Reason.NO_KUBECTL,
    )

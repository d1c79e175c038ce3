"""The two keys that open a server, and connection strings that carry one.

Whoever has a key may do everything: make tokens for clients, call the REST API, and check that an event comes from this
server. There are two so that one can be replaced while the other is in use: give everybody the secondary key,
regenerate the primary, give everybody that, regenerate the secondary. Nothing here shows a key unless asked for it by
name.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from jwt.algorithms import HMACAlgorithm
from jwt.exceptions import InvalidKeyError

from semel.errors import ConfigError

KEY_CHARS_MIN = 32
KEY_CHARS_MAX = 512
RANDOM_BYTES = 32

# Everybody knows it: it is the one with which Microsoft's emulator starts, for use on one's own machine.
DEV_KEY = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ABCDEFGH"

_KEY = re.compile(r"[!-:<-~]+\Z")
_SHAPE = "Endpoint=http://127.0.0.1:8080;AccessKey=<key>;Version=1.0;"
_TEXT_CHARS_MAX = 4096


@dataclass(frozen=True, slots=True, repr=False)
class AccessKeys:
    """`secondary` None: there is only one."""

    primary: str
    secondary: str | None = None

    def __post_init__(self) -> None:
        _check_key("the primary key", self.primary)
        if self.secondary is not None:
            _check_key("the secondary key", self.secondary)

    def __repr__(self) -> str:
        return f"AccessKeys({'one' if self.secondary is None else 'two'}, hidden)"

    @property
    def all(self) -> tuple[str, ...]:
        """The keys that are accepted, the one to sign with first."""
        return (self.primary,) if self.secondary is None else (self.primary, self.secondary)

    def signature(self, connection_id: str) -> str:
        """What an event handler checks to know that an event comes from here: one part for each key."""
        return ",".join(f"sha256={_signature(key, connection_id)}" for key in self.all)


def new_key(random: bytes) -> str:
    """A key out of 32 random bytes."""
    if len(random) != RANDOM_BYTES:
        raise ConfigError(f"a key is made of {RANDOM_BYTES} random bytes, not {len(random)}", fix="draw that many")
    return base64.urlsafe_b64encode(random).decode().rstrip("=")


def _signature(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def _check_key(what: str, key: str) -> None:
    if not KEY_CHARS_MIN <= len(key) <= KEY_CHARS_MAX:
        raise ConfigError(
            f"{what} has {len(key)} characters, and needs {KEY_CHARS_MIN} to {KEY_CHARS_MAX}",
            fix="use a long random key, such as the output of: openssl rand -base64 32",
        )
    if not _KEY.match(key):
        raise ConfigError(
            f"{what} has characters that cannot stand in a connection string",
            fix="use letters, digits and signs of ASCII, without blanks and semicolons",
        )
    try:
        HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(key)
    except InvalidKeyError:
        raise ConfigError(
            f"{what} is a key of another kind, for two parties with different keys",
            fix="use a long random text as the key, such as the output of: openssl rand -base64 32",
        ) from None


# -- connection strings


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """Where a server is and one of its keys. `endpoint` has no slash at its end."""

    endpoint: str
    key: str = field(repr=False)

    def text(self) -> str:
        """The form that Microsoft's libraries read. It contains the key."""
        return f"Endpoint={self.endpoint};AccessKey={self.key};Version=1.0;"


def connection_string(endpoint: str, key: str) -> ConnectionString:
    """Checks both parts."""
    _check_key("the access key", key)
    return ConnectionString(_checked_endpoint(endpoint), key)


def parse_connection_string(text: str) -> ConnectionString:
    """Reads `Endpoint=…;AccessKey=…;Port=…;Version=1.0;`: in any order, names in any case, the last two optional."""
    parts = _parts(text)
    for name in ("endpoint", "accesskey"):
        if not parts.get(name):
            raise ConfigError(f"the connection string has no {_NAMES[name]}", fix=f"write it like {_SHAPE}")
    if parts.get("version", "1.0") != "1.0":
        raise ConfigError("the connection string has an unknown version", fix="write Version=1.0 or leave it out")
    _check_key("the access key", parts["accesskey"])
    return ConnectionString(_checked_endpoint(parts["endpoint"], parts.get("port")), parts["accesskey"])


_NAMES = {"endpoint": "Endpoint", "accesskey": "AccessKey", "port": "Port", "version": "Version"}


def _parts(text: str) -> dict[str, str]:
    """Errors name the number of the part and not its text, which could be the key."""
    if len(text) > _TEXT_CHARS_MAX:
        raise ConfigError(
            f"the connection string has {len(text):,} characters, the limit is {_TEXT_CHARS_MAX:,}",
            fix=f"write it like {_SHAPE}",
        )
    parts: dict[str, str] = {}
    for number, part in enumerate(text.split(";"), 1):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        known = name.strip().lower()
        if not equals or known not in _NAMES:
            raise ConfigError(
                f"part {number} of the connection string is none of {', '.join(_NAMES.values())}",
                fix=f"write it like {_SHAPE}",
            )
        if known in parts:
            raise ConfigError(f"the connection string has {_NAMES[known]} twice", fix="keep one of them")
        parts[known] = value.strip()
    return parts


def _checked_endpoint(endpoint: str, port: str | None = None) -> str:
    url = _split(endpoint)
    if port is None:
        return endpoint.rstrip("/")
    number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 0
    if not 0 < number < 65536:
        raise ConfigError("the Port of the connection string is no port", fix="write a number from 1 to 65535")
    if url.port not in (None, number):
        raise ConfigError(
            f"the connection string has port {url.port} in its Endpoint and Port={number}", fix="keep one of them"
        )
    if url.port == number:
        return endpoint.rstrip("/")
    return f"{url.scheme}://{url.netloc}:{number}{url.path.rstrip('/')}"


def _split(endpoint: str) -> SplitResult:
    fix = "write http:// or https://, the host, and a port if it is not the usual one"
    url = _url(endpoint) if endpoint.isascii() and endpoint.isprintable() else None
    if url is None:
        raise ConfigError("the endpoint is no address of a server", fix=fix)
    if url.username is not None or any(character in endpoint for character in "?#; ") or url.netloc.endswith(":"):
        raise ConfigError("the endpoint has more than a scheme, a host, a port and a path", fix=fix)
    return url


def _url(endpoint: str) -> SplitResult | None:
    try:
        url = urlsplit(endpoint)
        return url if url.scheme in ("http", "https") and url.hostname and url.port != 0 else None
    except ValueError:
        return None

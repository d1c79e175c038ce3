"""How commands find a running pub/sub server, its keys, and what they ask of it over HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from semel.cli.options import ConfigOption, load, option
from semel.errors import (
    AuthError,
    ConfigError,
    EpochChanged,
    Forbidden,
    InputError,
    PeerUnavailable,
    RemoteProtocolError,
    SemelError,
)

if TYPE_CHECKING:
    import httpx

    from semel.auth.keys import AccessKeys
    from semel.config import AuthSection, Config
    from semel.runtime.server.server_lock import Running

CONNECTION_VARIABLE = "SEMEL_CONNECTION_STRING"
KEY_VARIABLES = ("SEMEL_ACCESS_KEY", "SEMEL_ACCESS_KEY_SECONDARY")
KEY_FILE = "semel.keys"
DEV_ENDPOINT = "http://127.0.0.1:8080"
API_VERSION = "2024-12-01"
CONNECT_S = 5.0
ANSWER_S = 40.0
NOT_FOUND = 404

KeysOption = Annotated[
    Path | None, option("--keys", "The access keys. Default: semel.keys, made by semel serve.", "FILE")
]
ConnectionOption = Annotated[
    str | None,
    option(
        "--connection-string",
        "Where the server is, and a key of it. Default: SEMEL_CONNECTION_STRING, else what semel serve would use here.",
        "TEXT",
    ),
]
EndpointOption = Annotated[str | None, option("--endpoint", "Where the server is; the key comes from --keys.", "URL")]
DevOption = Annotated[bool, option("--dev", "The server of semel serve --dev on this machine.")]
CaOption = Annotated[Path | None, option("--ca", "Trust the server's certificate if this one signed it.", "FILE")]


# -- keys


def find_keys(dev: bool, file: Path | None, auth: AuthSection, *, create: bool = True) -> AccessKeys:
    """--dev and --keys win over the environment, and that over the configuration."""
    from semel.auth.keys import DEV_KEY, AccessKeys

    primary, secondary = (os.environ.get(name) or None for name in KEY_VARIABLES)
    if dev:
        if file is not None or primary or secondary:
            raise ConfigError("--dev has its own key, and another one is given", fix="leave out one of the two")
        return AccessKeys(DEV_KEY)
    if primary is None and secondary is not None:
        raise ConfigError(
            f"{KEY_VARIABLES[1]} is set without {KEY_VARIABLES[0]}", fix=f"set {KEY_VARIABLES[0]} as well"
        )
    if primary is not None:
        if file is not None:
            raise ConfigError(f"both {KEY_VARIABLES[0]} and --keys are given", fix="leave out one of the two")
        return AccessKeys(primary, secondary)
    if file is None and auth.primary_key is not None:
        return AccessKeys(auth.primary_key, auth.secondary_key)
    return _keys_in((file or auth.keys or Path(KEY_FILE)).absolute(), create=create)


def _keys_in(file: Path, *, create: bool) -> AccessKeys:
    from semel.runtime.server.key_file import load_keys

    if not create and not file.exists():
        raise ConfigError(
            f"there are no access keys in {file}",
            fix=f"run this where semel serve runs, or set {CONNECTION_VARIABLE} to the line that it prints, or give "
            "--keys; for semel serve --dev give --dev",
        )
    return load_keys(file)


# -- the server


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, what opens it, and whose certificate is trusted."""

    endpoint: str
    keys: AccessKeys
    ca: Path | None = None


def find_server(
    connection_string: str | None,
    endpoint: str | None = None,
    keys: Path | None = None,
    *,
    dev: bool = False,
    config: Path | None = None,
    ca: Path | None = None,
) -> ServerAddress:
    """The command line, else the environment, else the server on the SQLite file of this folder, else what `semel
    serve` would use here."""
    from semel.auth.keys import AccessKeys, parse_connection_string
    from semel.auth.keys import connection_string as checked

    if dev and (connection_string or endpoint):
        raise ConfigError("--dev is a server of its own, and another one is named", fix="leave out one of the two")
    if connection_string and (endpoint or keys):
        raise ConfigError(
            "--connection-string says where the server is and has its key", fix="leave out --endpoint and --keys"
        )
    given = connection_string
    if given is None and not (dev or endpoint or keys):
        given = os.environ.get(CONNECTION_VARIABLE) or None
    if given is not None:
        parsed = parse_connection_string(given)
        return ServerAddress(parsed.endpoint, AccessKeys(parsed.key), ca)
    loaded = load(config)
    beside = None if dev or endpoint else _beside(loaded)
    if beside is not None and keys is None and not os.environ.get(KEY_VARIABLES[0]):
        dev, keys = beside.is_dev, None if beside.keys is None else Path(beside.keys)
    found = find_keys(dev, keys, loaded.auth, create=False)
    where = beside.endpoint if beside is not None else DEV_ENDPOINT if dev else endpoint or _endpoint(loaded)
    return ServerAddress(checked(where, found.primary).endpoint, found, ca)


def _beside(config: Config) -> Running | None:
    """The server on the SQLite file that commands in this folder use."""
    from semel.runtime.server.server_lock import running_on
    from semel.stores.sqlite import path_of

    url, _ = config.resolve_store(None)
    return running_on(path_of(url)) if url.startswith("sqlite:") else None


def _endpoint(config: Config) -> str:
    """Where a server with this configuration is known; else where it listens."""
    from semel.http import THIS_MACHINE, in_url

    server = config.server
    if server.endpoints:
        return server.endpoints[0].rstrip("/")
    host = THIS_MACHINE.get(server.host, server.host)
    scheme = "http" if server.tls_cert is None else "https"
    return f"{scheme}://{in_url(host)}:{server.port}"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where a running server is, and what opens it."""

    connection_string: ConnectionOption = None
    endpoint: EndpointOption = None
    keys: KeysOption = None
    dev: DevOption = False
    ca: CaOption = None
    config: ConfigOption = None

    def server(self) -> RemoteServer:
        return RemoteServer(
            find_server(self.connection_string, self.endpoint, self.keys, dev=self.dev, config=self.config, ca=self.ca)
        )


class RemoteServer:
    """A running server, asked over HTTP. It goes to that address and no other: neither a redirect nor a proxy of the
    environment is followed, since every request carries a token."""

    def __init__(self, place: ServerAddress) -> None:
        import httpx

        self._place = place
        self._client = httpx.Client(
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            follow_redirects=False,
            trust_env=False,
            verify=_trust(place),
        )

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, name: str, query: Mapping[str, object] | None = None) -> dict[str, Any]:
        """An answer of the API for operators, with a list of this name in it."""
        response = self._send("GET", path, query or {})
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or not isinstance(answer.get(name), list):
            raise RemoteProtocolError(f"{self._place.endpoint} did not answer with {name}", fix=_NOT_SEMEL)
        return answer

    def rest(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, str]:
        """An operation of the REST API that answers with headers only."""
        return self._send(method, f"/api{path}", {"api-version": API_VERSION, **(query or {})}, body, headers).headers

    def has(self, path: str) -> bool:
        """Whether this connection, user or group is there."""
        return self._send("HEAD", f"/api{path}", {"api-version": API_VERSION}, allowed=NOT_FOUND).is_success

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        allowed: int | None = None,
    ) -> httpx.Response:
        """`allowed` is a status that is an answer too, though no success."""
        import httpx

        from semel.auth.tokens import service_token

        url = f"{self._place.endpoint}{path}"
        token = service_token(self._place.keys, url, now=time.time())
        params = {name: value for name, value in query.items() if value is not None}
        try:
            response = self._client.request(
                method,
                url,
                params=params,  # type: ignore[arg-type]
                content=body,
                headers={**(headers or {}), "authorization": f"Bearer {token}"},
            )
        except httpx.HTTPError as error:
            raise _no_answer(self._place.endpoint, error) from None
        if not response.is_success and response.status_code != allowed:
            raise _refusal(self._place.endpoint, response)
        return response


def _no_answer(endpoint: str, error: httpx.HTTPError) -> PeerUnavailable:
    """What TLS says of itself does not help people."""
    import httpx

    cause = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in cause:
        why = cause.rpartition("verify failed: ")[2].partition(" (_ssl")[0]
        return PeerUnavailable(
            f"the certificate of {endpoint} is not trusted: {why}",
            fix="name the certificate that signed it, or itself if it did so: --ca cert.pem",
        )
    fix = "is the server running, and is this its address?"
    if "[SSL" in cause:
        fix = "does it serve TLS there? if not, its address begins with http://"
    elif endpoint.startswith("http://") and isinstance(error, httpx.RemoteProtocolError):
        fix = "does it serve TLS there? then its address begins with https://"
    return PeerUnavailable(f"{endpoint} does not answer: {cause}", fix=fix)


_NOT_SEMEL = "is this the address of a server of Semel?"


def _trust(place: ServerAddress) -> Any:
    import ssl

    try:
        return ssl.create_default_context(cafile=place.ca)  # without one, what this machine trusts
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate {place.ca} cannot be used: {error}", fix="name a file with a certificate in PEM form"
        ) from None


def _refusal(endpoint: str, response: httpx.Response) -> SemelError:
    """Servers of ours say what to do in the same line, after the first semicolon."""
    status = response.status_code
    message, _, fix = _message(response).partition("; ")
    match status:
        case 401:
            return AuthError(
                f"{endpoint} refuses the key: {message}", fix=fix or "use a key of this server, and its address"
            )
        case 403:
            return Forbidden(f"{endpoint} does not allow this: {message}", fix=fix or "use another key")
        case 400 | 409 | 413:
            return InputError(message, fix=fix or "change what was asked, and try again")
        case 404 | 405:
            return RemoteProtocolError(f"{endpoint} does not know this: {message}", fix=_NOT_SEMEL)
        case 410:
            return EpochChanged(message, current=0, fix="begin again")
        case 429 | 502 | 503 | 504:
            return PeerUnavailable(f"{endpoint} cannot do it now: {message}", fix=fix or "try again")
    return RemoteProtocolError(f"{endpoint} answers {status}: {message}", fix=_NOT_SEMEL)


def _message(response: httpx.Response) -> str:
    """What the server says, if it is one of ours."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    message = answer.get("message") if isinstance(answer, dict) else None
    return str(message)[:500] if message else response.reason_phrase

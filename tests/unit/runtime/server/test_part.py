"""Which service a path belongs to, and who may use a route."""

from __future__ import annotations

import pytest

from semel.auth.authority import Authority
from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import service_token
from semel.errors import ConfigError, InputError
from semel.http import HttpError, HttpRequest, HttpResponse
from semel.runtime.server.part import Mount, Mounts, Route, Routed

KEYS = AccessKeys(DEV_KEY)
NOW = 1_800_000_000.0


async def nothing(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def test_the_longest_prefix_that_fits_is_meant() -> None:
    otherwise, *mounts = (Mount(prefix, nothing) for prefix in ("/", "/v1/", "/v1/pubsub/", "/healthz/"))
    found = Mounts(mounts, otherwise)
    for path, prefix in [
        ("/v1", "/v1/"),
        ("/v1/", "/v1/"),
        ("/v1/pubsub", "/v1/pubsub/"),
        ("/v1/pubsub/hubs", "/v1/pubsub/"),
        ("/v1/pubsubs", "/v1/"),
        ("/healthz", "/healthz/"),
        ("/v2", "/"),
        ("", "/"),
        ("*", "/"),
    ]:
        assert found.find(path).prefix == prefix


@pytest.mark.parametrize("prefix", ["", "v1/", "/v1"])
def test_a_prefix_begins_and_ends_with_a_slash(prefix: str) -> None:
    with pytest.raises(ConfigError, match="slash"):
        Mount(prefix, nothing)


def test_two_services_cannot_have_one_prefix() -> None:
    mount = Mount("/v1/", nothing)
    with pytest.raises(ConfigError, match="two services want /v1/"):
        Mounts([mount, Mount("/v1/", nothing)], mount)


async def greet(request: HttpRequest, names: dict[str, str]) -> HttpResponse:
    if names["name"] == "nobody":
        raise InputError("there is no such name", fix="use another")
    return HttpResponse(200, (), names["name"].encode())


ROUTED = Routed(
    [Route("GET", "/a/{name}", greet, "semel.send:a/{name}"), Route("GET", "/open/{name}", greet, None)],
    Authority(KEYS),
    clock=lambda: NOW,
)


def asking(path: str, *roles: str) -> HttpRequest:
    token = service_token(KEYS, f"http://h{path}", now=NOW, roles=roles)
    return HttpRequest("GET", path, headers={"authorization": f"Bearer {token}"}, host="h")


@pytest.mark.parametrize(
    ("role", "status"),
    [
        ("semel.send:a/ann", 200),
        ("semel.send:a/*", 200),
        ("semel.operate", 200),
        ("semel.send:a/bob", 403),
        ("semel.send:a/{name}", 403),
        ("semel.receive:a/ann", 403),
        ("semel.read", 403),
    ],
)
async def test_a_role_is_asked_for_with_the_names_in_the_path(role: str, status: int) -> None:
    if status == 200:
        assert (await ROUTED(asking("/a/ann", role))).body == b"ann"
        return
    with pytest.raises(HttpError) as caught:
        await ROUTED(asking("/a/ann", role))
    assert (caught.value.status, caught.value.fix) == (status, "make one with the role semel.send:a/ann")


async def test_a_name_with_signs_of_a_pattern_is_just_a_name() -> None:
    for path in ("/a/%2A", "/a/{name}", "/a/%7B0%7D"):
        with pytest.raises(HttpError) as caught:
            await ROUTED(asking(path, "semel.send:a/ann"))
        assert caught.value.status == 403


async def test_what_is_open_needs_no_token_and_bad_input_is_a_400() -> None:
    assert (await ROUTED(HttpRequest("GET", "/open/ann"))).status == 200
    with pytest.raises(HttpError) as caught:
        await ROUTED(HttpRequest("GET", "/open/nobody"))
    assert (caught.value.status, caught.value.fix) == (400, "use another")

"""The values of HTTP: what of a request is believed, and what is refused."""

from __future__ import annotations

import hashlib
import ssl
from http import HTTPStatus

import pytest

from semel.http import (
    FIELDS_MAX,
    ClientCertificate,
    HttpError,
    HttpRequest,
    Query,
    bearer_of,
    content_type_of,
    empty_error,
    json_error,
    origin_of,
    read_json,
    split_path,
    status_error,
    text_error,
    text_of,
    unavailable,
)


def refused(status: int, call: object, *values: object) -> HttpError:
    with pytest.raises(HttpError) as found:
        call(*values)  # type: ignore[operator]
    assert found.value.status == status
    return found.value


@pytest.mark.parametrize("host", ["a.example", "127.0.0.1:8080", "[::1]:80"])
def test_the_origin_is_scheme_and_host(host: str) -> None:
    assert origin_of(HttpRequest("GET", "/", scheme="https", host=host)) == f"https://{host}"


@pytest.mark.parametrize("host", ["", "a/client", "a b", "user@a", "a?x", "[zz]", "a:123456"])
def test_nothing_can_be_smuggled_into_the_origin(host: str) -> None:
    refused(400, origin_of, HttpRequest("GET", "/", host=host))
    refused(400, origin_of, HttpRequest("GET", "/", scheme="ftp", host="a"))


def test_a_path_is_split_before_it_is_decoded() -> None:
    assert split_path("/groups/a%2Fb/x%20y") == ["groups", "a/b", "x y"]
    assert split_path("/") == [""]


@pytest.mark.parametrize("path", ["a", "/a?b", "/a#b", "/%", "/%zz", "/%ff", "/a/../b", "/a/%2e%2e/b", "/ü", "/a b"])
def test_a_path_that_could_mean_two_things_is_refused(path: str) -> None:
    refused(400, split_path, path)


def test_where_one_value_is_meant_a_second_is_a_mistake() -> None:
    query = Query("a=1&B=2&b=&c=x&c=y")
    assert (query.one("A"), query.one("missing"), query.all("b"), query.all("c")) == ("1", None, ["2"], ["x", "y"])
    assert "more than once" in refused(400, query.one, "c").message


@pytest.mark.parametrize(("text", "found"), [("", None), ("n=1", 1), ("n=10", 10)])
def test_numbers_in_a_query(text: str, found: int | None) -> None:
    assert Query(text).number("n", 1, 10) == found


@pytest.mark.parametrize("text", ["n=0", "n=11", "n=", "n=-1", "n=1.0", "n=%D9%A1", "n=99999999999"])
def test_numbers_out_of_range_are_refused(text: str) -> None:
    refused(400, Query(text).number, "n", 1, 10)


def test_a_query_is_plain_ascii_and_not_endless() -> None:
    refused(400, Query, "a=ü")
    refused(400, Query, "a=%ff")
    refused(400, Query, "&".join(["a=1"] * (FIELDS_MAX + 1)))


@pytest.mark.parametrize(("header", "token"), [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None)])
def test_a_bearer_is_found_in_any_case(header: str, token: str | None) -> None:
    assert bearer_of(HttpRequest("GET", "/", headers={"authorization": header})) == token
    assert bearer_of(HttpRequest("GET", "/")) is None


def test_the_charset_is_that_of_the_content_type() -> None:
    assert content_type_of({"content-type": 'Text/Plain; Charset="ISO-8859-1"'}) == ("text/plain", "latin-1")
    assert content_type_of({}) == ("", "utf-8")
    refused(415, content_type_of, {"content-type": "text/plain; charset=rot13"})
    refused(415, content_type_of, {"content-encoding": "gzip"})
    assert text_of(b"\xe4", "latin-1") == "ä"
    refused(400, text_of, b"\xe4", "utf-8")


def test_json_is_taken_as_json_alone() -> None:
    assert read_json(HttpRequest("POST", "/", headers={"content-type": "application/json"}, body=b"{}")) == "{}"
    refused(415, read_json, HttpRequest("POST", "/", headers={"content-type": "text/plain"}, body=b"{}"))


def test_each_style_answers_an_error_in_its_way() -> None:
    error = HttpError(409, "Error.Conflict", "no", fix="do", headers=(("x", "1"),))
    plain, json, empty = text_error(error), json_error(error), empty_error(error)
    assert {each.status for each in (plain, json, empty)} == {409}
    assert (plain.body, empty.body) == (b"no; do\n", b"")
    assert json.body == b'{"code":"Error.Conflict","message":"no; do","target":"Request"}'
    assert all(("x", "1") in each.headers for each in (plain, json, empty))


def test_the_usual_name_of_a_status() -> None:
    assert status_error(HTTPStatus.REQUEST_URI_TOO_LONG).name == "Error.RequestUriTooLong"
    assert unavailable("gone", 7).headers == (("retry-after", "7"),)


def test_a_certificate_is_named_by_its_digests_and_written_as_pem() -> None:
    der = bytes(range(256))
    shown = ClientCertificate(der)
    assert shown.fingerprint == hashlib.sha256(der).hexdigest()
    assert shown.thumbprint == hashlib.sha1(der).hexdigest().upper()
    assert shown.pem == ssl.DER_cert_to_PEM_cert(der)

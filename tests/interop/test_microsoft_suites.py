"""Microsoft's own tests of their Python SDKs pass against our server: on one node, and on two behind a balancer.

Where they sign in with an identity of Entra, they have the access key here. Those of the JavaScript SDKs are not in the
npm packages.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.interop.served import Served
from tests.interop.suites import Suite, fetch, run

pytestmark = [pytest.mark.interop, pytest.mark.connected]

TLS = "asserts that the address begins with wss, and the server is reached without TLS here; test_tls.py has it"
AZURE = "calls a host of Azure and none of ours, and asserts how that fails"

SERVICE = Suite(
    "azure-messaging-webpubsubservice",
    not_here={
        "test_smoke.py::TestWebpubsubSmoke::test_get_client_access_token": TLS,
        "test_smoke_async.py::TestWebpubsubSmokeAsync::test_get_client_access_token": TLS,
        "test_smoke.py::TestWebpubsubSmoke::test_webpubsub_send_to_all_api_management_proxy_counter_test": AZURE,
    },
    passing=71,
    processes=0,
)  # fmt: skip
CLIENT = Suite(
    "azure-messaging-webpubsubclient",
    not_here={
        "test_smoke.py::TestWebpubsubClientSmoke::test_open_client_error": AZURE,
        "test_smoke_async.py::TestWebpubsubClientSmokeAsync::test_open_client_error_async": AZURE,
    },
    passing=50,
    processes=6,
)


@pytest.mark.parametrize(
    "suite", [pytest.param(SERVICE, id="service"), pytest.param(CLIENT, id="client", marks=pytest.mark.slow(20))]
)
def test_they_pass(suite: Suite, served: Served, tmp_path: Path) -> None:
    outcome = run(suite, served, tmp_path)
    assert outcome.others == [], outcome.output
    assert outcome.passed >= suite.passing, outcome.output


def test_whoever_cannot_fetch_them_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(AssertionError, match=r"(?s)pip could not fetch it\. This needs a network.*No matching"):
        fetch("semel-nowhere", f"semel-nowhere==1 --hash=sha256:{'0' * 64}\n", tmp_path)

"""What the how-to about several nodes says of times and limits is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from semel.config import load_config
from semel.kernel.lease import renew_at
from semel.pubsub.hub.floors import NODES_MAX
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.orders import ANSWER_S
from semel.pubsub.hub.read_barrier import READ_S

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "run-several-nodes.md").read_text()


def test_the_configuration_is_one(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "semel.toml").write_text(text)
    assert load_config(folder=tmp_path).store.node == "events-1"


def test_the_figures_are_those_of_the_code() -> None:
    lease_s, recovery_s = HubOptions().lease_s, HubOptions().recovery_s
    every_s = renew_at(0, lease_s)
    soonest_s, latest_s = lease_s - every_s, lease_s + every_s
    assert f"| {soonest_s:.0f} to {lease_s:.0f} s | the lease of the node has run out |" in PAGE
    assert f"| {soonest_s:.0f} to {latest_s:.0f} s | another node notices |" in PAGE
    assert f"| {recovery_s:.0f} s later | a client has not come back |" in PAGE
    assert f"waits up to {ANSWER_S:.0f} seconds for its answer" in PAGE
    assert latest_s < ANSWER_S
    assert f"if the database does not answer within {READ_S:.0f} seconds" in PAGE
    assert f"a commit every {every_s:.1f} seconds" in PAGE
    assert f"There may be {NODES_MAX:,} nodes" in PAGE

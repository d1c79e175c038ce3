"""What one process says of a switch, look by look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from semel.stores import postgres_switch
from semel.stores.postgres_switch import Switch, SwitchVerdict


class Run:
    """A server with two members, of which the other one is silent."""

    def ask(self, name: str, *params: Any) -> list[tuple[Any, ...]]:
        answers: dict[str, tuple[Any, ...]] = {
            "read_switch": (1, 2, 2, 0, 0),
            "read_member": (1,),
            "read_vouchers": (2, "other"),
        }
        return [answers[name]]

    def run(self, name: str, *params: Any) -> None:
        assert name == "vouch"


class Member:
    is_joined, member, number, known = True, "m", 1, 2


class Word:
    """What the witness of this process says."""

    timeline, has_lease = 1, True
    loss: str | None = None

    def find_loss(self, *args: Any, **kwargs: Any) -> str | None:
        return self.loss


@contextmanager
def transaction(*args: Any, **kwargs: Any) -> Iterator[Run]:
    yield Run()


def test_a_later_look_that_misses_something_takes_the_word_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may note that all is kept before the epoch is raised. Then our own check must still be made."""
    monkeypatch.setattr(postgres_switch, "transaction", transaction)
    session: Any = None
    witness: Any = Word()
    member: Any = Member()
    switch = Switch(session, 2, witness, member)
    assert switch._look(0, lambda run: None) is SwitchVerdict.WAIT
    assert switch.is_kept_by_us
    witness.loss = "a commit is not there"
    assert switch._look(0, lambda run: None) is SwitchVerdict.LOST
    assert not switch.is_kept_by_us

"""The life of a session on one node, as a table: what may happen to it in which phase, and in which phase it is then.

    new               made from its rows or for a new client; not served yet
    opening           its first commit is on its way: requests and deliveries wait
    behind            what it has missed is being read: what comes in waits behind that
    live              it is given what comes in, as long as it has a socket with room
    ending unopened   it ended before its first commit was decided: its end waits for that
    ending behind     it ended while it was catching up: its end waits for that, since the ledger has to say what became
                      of what it missed
    ending            the commit that deletes it is on its way, or has failed and is tried again
    gone              it is in the store no more, or another node has it

Whether it has a socket is apart from that: sockets come and go in every phase.
"""

from __future__ import annotations

from enum import Enum


class SessionPhase(Enum):
    NEW = "new"
    OPENING = "opening"
    BEHIND = "behind"
    LIVE = "live"
    ENDING_UNOPENED = "ending unopened"
    ENDING_BEHIND = "ending behind"
    ENDING = "ending"
    GONE = "gone"


class SessionChange(Enum):
    OPEN = "open"
    """A new client has come."""
    OPENED = "opened"
    """Its first commit is done."""
    NOT_OPENED = "not opened"
    """Its first commit has failed."""
    FALL_BEHIND = "fall behind"
    """It comes from its rows: after a restart, or from another node."""
    CAUGHT_UP = "caught up"
    END = "end"
    """Its client has left or did not come back, or it is thrown out. Also an end that is tried again."""
    ENDED = "ended"
    """Its end is in the store, or was refused because another node has the session."""
    RELEASE = "release"
    """Another node has it, or only a newer Semel can read it."""


_P, _C = SessionPhase, SessionChange

TRANSITIONS: dict[SessionPhase, dict[SessionChange, SessionPhase]] = {
    _P.NEW: {
        _C.OPEN: _P.OPENING,
        _C.FALL_BEHIND: _P.BEHIND,
        _C.END: _P.ENDING,
    },
    _P.OPENING: {
        _C.OPENED: _P.LIVE,
        _C.NOT_OPENED: _P.GONE,
        _C.END: _P.ENDING_UNOPENED,
        _C.RELEASE: _P.GONE,
    },
    _P.BEHIND: {
        _C.CAUGHT_UP: _P.LIVE,
        _C.END: _P.ENDING_BEHIND,
        _C.RELEASE: _P.GONE,
    },
    _P.LIVE: {
        _C.END: _P.ENDING,
        _C.RELEASE: _P.GONE,
    },
    _P.ENDING_UNOPENED: {
        _C.OPENED: _P.ENDING,
        _C.NOT_OPENED: _P.ENDING,
        _C.RELEASE: _P.ENDING_UNOPENED,
    },
    _P.ENDING_BEHIND: {
        _C.CAUGHT_UP: _P.ENDING,
        _C.RELEASE: _P.ENDING_BEHIND,
    },
    _P.ENDING: {
        _C.END: _P.ENDING,
        _C.ENDED: _P.GONE,
        _C.RELEASE: _P.ENDING,
    },
    # what was on its way when the session went is reported all the same, and changes nothing any more
    _P.GONE: {
        _C.OPENED: _P.GONE,
        _C.NOT_OPENED: _P.GONE,
        _C.CAUGHT_UP: _P.GONE,
        _C.RELEASE: _P.GONE,
    },
}


def after(phase: SessionPhase, change: SessionChange) -> SessionPhase:
    found = TRANSITIONS[phase].get(change)
    assert found is not None, f"a session that is {phase.value} cannot {change.value}"
    return found

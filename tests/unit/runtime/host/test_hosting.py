from __future__ import annotations

from tests.unit.runtime.host.test_performer import Wire

from semel.runtime.host.hosting import Host, Hosts


def test_who_receives_what_a_peer_sends() -> None:
    wire, other = Wire(), Wire()
    everything = Host("everything", transport=wire)
    one = Host("one", transport=wire, peers=("a", "a", "b"))
    nothing = Host("nothing", transport=wire, peers=())
    elsewhere = Host("elsewhere", transport=other)
    hosts = Hosts()
    for host in (everything, one, nothing, elsewhere, Host("without a wire")):
        hosts.add(host)

    assert hosts.receivers(wire, "a") == (everything, one)
    assert hosts.receivers(wire, "c") == (everything,)
    assert hosts.receivers(other, "a") == (elsewhere,)
    assert hosts.receivers(Wire(), "a") == ()


def test_one_that_is_removed_or_replaced_receives_nothing_more() -> None:
    wire = Wire()
    hosts = Hosts()
    old, new = Host("m", transport=wire, peers=("a",)), Host("m", transport=wire, peers=("b",))
    hosts.add(old)
    hosts.add(new)
    assert (hosts.receivers(wire, "a"), hosts.receivers(wire, "b"), list(hosts)) == ((), (new,), [new])

    hosts.remove("m")
    hosts.remove("m")
    assert (hosts.receivers(wire, "b"), len(hosts), hosts.get("m")) == ((), 0, None)

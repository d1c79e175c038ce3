from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError, LimitExceeded
from semel.pubsub.protocol.names import (
    GROUP_CHARS_MAX,
    METADATA_BYTES_MAX,
    METADATA_KEY_BYTES_MAX,
    METADATA_VALUE_BYTES_MAX,
    TTL_S_MAX,
    check_event,
    check_group,
    check_hub,
    check_metadata,
    check_ttl,
)


@pytest.mark.parametrize("name", ["a", "Z", "chat_1", "a`,.[]", "h" * 128])
def test_a_hub_has_one_name_in_any_case(name: str) -> None:
    assert check_hub(name) == check_hub(name.upper()) == name.lower()


@pytest.mark.parametrize("name", ["", "1a", "_a", "a-b", "a b", "ä", "a\n", "a/b", "h" * 129, "a\x00"])
def test_what_is_no_hub_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="hub"):
        check_hub(name)


@pytest.mark.parametrize("name", ["g", " g ", "room:1", "🙂", "a\nb", "G" * GROUP_CHARS_MAX, "ü" * GROUP_CHARS_MAX])
def test_nearly_everything_is_a_group(name: str) -> None:
    assert check_group(name) == name


@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u2003", "a\x00", "ä\x00", "\ud800", "a\udfff"])
def test_a_blank_group_and_one_that_no_store_holds_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="group"):
        check_group(name)


@pytest.mark.parametrize("letter", ["g", "ü"])
def test_an_overlong_group_is_refused_as_a_limit(letter: str) -> None:
    with pytest.raises(LimitExceeded, match="1025 characters"):
        check_group(letter * (GROUP_CHARS_MAX + 1))


@pytest.mark.parametrize("name", ["a", "message", "A.b-c_9", "e" * 128])
def test_names_of_events(name: str) -> None:
    assert check_event(name) == name


@pytest.mark.parametrize("name", ["", "9a", ".a", "a b", "a,b", "a:b", "é", "a\n", "e" * 129])
def test_what_is_no_event_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="event"):
        check_event(name)


def test_a_message_lives_five_minutes_at_most() -> None:
    assert [check_ttl(seconds) for seconds in (0, 1, TTL_S_MAX)] == [0, 1, 300]


@pytest.mark.parametrize("seconds", [-1, TTL_S_MAX + 1, pytest.param(10**5000, id="endless")])
def test_other_times_to_live_are_refused(seconds: int) -> None:
    with pytest.raises(InputError, match="time to live"):
        check_ttl(seconds)


def test_metadata_up_to_its_limits() -> None:
    largest = {
        "k" * METADATA_KEY_BYTES_MAX: "v" * METADATA_VALUE_BYTES_MAX,
        **{f"key{n}": "v" * (METADATA_VALUE_BYTES_MAX - 4) for n in range(6)},
    }
    size = sum(len(key) + len(value) for key, value in largest.items())
    largest["rest"] = "v" * (METADATA_BYTES_MAX - size - 4)
    assert check_metadata(largest) is largest
    largest["rest"] += "v"
    with pytest.raises(LimitExceeded, match="8193 bytes"):
        check_metadata(largest)


@pytest.mark.parametrize("key", ["", "a b", "a:b", "ä", "a\n", "a\x00", '"'])
def test_a_key_that_is_no_token_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="key of metadata"):
        check_metadata({"good": "", key: ""})


@pytest.mark.parametrize("value", ["ä", "\x80", "\x00", "🙂"])
def test_a_value_that_is_not_ascii_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="not ASCII"):
        check_metadata({"key": value})


@pytest.mark.parametrize(
    ("key", "value"), [("k" * (METADATA_KEY_BYTES_MAX + 1), ""), ("k", "v" * (METADATA_VALUE_BYTES_MAX + 1))]
)
def test_overlong_metadata_is_refused_as_a_limit(key: str, value: str) -> None:
    with pytest.raises(LimitExceeded, match="too long"):
        check_metadata({key: value})


@given(st.text(st.characters(), max_size=5))
def test_whatever_it_is_called_it_passes_or_is_an_input_error(name: str) -> None:
    for check in (check_hub, check_group, check_event):
        with suppress(InputError):
            assert check(name).lower() == name.lower()

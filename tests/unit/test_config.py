"""Configuration: what is read, what wins, and how a mistake is pointed out."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.config import (
    DEFAULT_URL,
    LATER_SECTIONS,
    Config,
    HandlerSection,
    InputSection,
    LedgerSection,
    OrderSection,
    PipelineSection,
    ServerSection,
    SparkSection,
    StoreSection,
    line_of,
    load_config,
)
from semel.errors import ConfigError
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.protocol.frames import FRAME_BYTES_MAX
from semel.runtime.server.limits import ListenerLimits


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str) -> Config:
    Path("semel.toml").write_text(text)
    return load_config()


def complaint(text: str) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return caught.value.message, caught.value.fix


# -- what is read


def test_without_a_file_there_are_defaults() -> None:
    assert load_config() == Config(StoreSection(), LedgerSection(), None)
    assert load_config().resolve_store() == (DEFAULT_URL, "default")


def test_a_file_in_this_folder_is_found() -> None:
    config = load('[store]\nurl = "sqlite:///x.db"\nnode = "a"\n[ledger]\nexport_to = "lake"\nsegment_rows = 2000\n')
    assert (config.store.url, config.store.node) == ("sqlite:///x.db", "a")
    assert (config.ledger.export_to, config.ledger.segment_rows) == (Path("lake"), 2000)
    assert config.resolve_store() == ("sqlite:///x.db", "semel.toml")


def test_another_file_may_be_named(tmp_path: Path) -> None:
    load('[store]\nurl = "memory:"\n')
    other = tmp_path / "other.toml"
    other.write_text('[store]\nurl = "sqlite:///other.db"\n')
    assert load_config(other).resolve_store() == ("sqlite:///other.db", str(other))


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_STORE__URL", "sqlite:///env.db")
    monkeypatch.setenv("SEMEL_LEDGER__SEGMENT_ROWS", "3000")
    config = load('[store]\nurl = "sqlite:///file.db"\nnode = "kept"\n')
    assert config.resolve_store() == ("sqlite:///env.db", "SEMEL_STORE__URL")
    assert config.resolve_store("sqlite:///given.db") == ("sqlite:///given.db", "--store")
    assert (config.store.node, config.ledger.segment_rows) == ("kept", 3000)


def test_the_example_can_be_loaded_as_it_is_and_with_every_line_switched_on(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "semel.toml.example"
    assert load_config(example).store == StoreSection()
    lines = example.read_text().splitlines()
    switched_on = [line.removeprefix("# ") if " = " in line or "[[" in line else line for line in lines]
    config = load("\n".join(switched_on))
    assert config.store.url
    assert config.ledger.export_to
    assert config.spark.settings
    [pipeline] = config.pipelines
    assert (pipeline.name, pipeline.order) == ("orders", OrderSection())
    [hub] = config.pubsub.hub
    assert (hub.name, len(hub.handler)) == ("chat", 1)
    named = {line.split(" = ")[0] for line in switched_on if " = " in line}
    sections = (StoreSection, LedgerSection, SparkSection, ServerSection, HandlerSection)
    assert named >= {name for section in sections for name in section.model_fields}


# -- mistakes in the file


def test_an_unknown_key_is_named_with_its_line_and_what_was_meant() -> None:
    message, fix = complaint('# my store\n\n[store]\nurl = "memory:"\nnoode = "a"\n')
    assert message == "semel.toml, line 5: there is no key 'noode' in [store]"
    assert fix == "did you mean 'node'?"


def test_an_unknown_key_like_no_other_lists_what_there_is() -> None:
    assert complaint("[ledger]\nzzz = 1\n")[1] == "the keys are: export_to, keep_s, lease_s, segment_rows"


def test_an_unknown_section_is_named_with_its_line() -> None:
    message, fix = complaint("[stroe]\nurl = 1\n")
    assert message == "semel.toml, line 1: there is no section [stroe]"
    assert fix == "did you mean 'store'?"


@pytest.mark.parametrize("section", sorted(LATER_SECTIONS))
def test_a_section_of_a_later_part_says_so(section: str) -> None:
    message, fix = complaint(f"[store]\n[{section}]\n")
    assert message.startswith(f"semel.toml, line 2: section [{section}] belongs to a part that Semel ")
    assert fix == f"remove [{section}], or install a version that has it"


def test_an_array_of_tables_of_a_later_part_says_so() -> None:
    assert "line 3: section [geo]" in complaint('[store]\n\n[[geo.region]]\nname = "east"\n')[0]


@pytest.mark.parametrize(
    ("text", "what", "allowed"),
    [
        ("segment_rows = 5", "= 5 should be greater than or equal to 1000", "1,000 to 5,000,000"),
        ('segment_rows = "many"', "= 'many' should be a valid integer", "1,000 to 5,000,000"),
        ("lease_s = 0.5", "= 0.5 should be greater than or equal to 1", "1 to 3600"),
    ],
)
def test_a_bad_value_is_named_with_its_line_and_what_is_allowed(text: str, what: str, allowed: str) -> None:
    message, fix = complaint(f"[store]\n[ledger]\n\n{text}\n")
    key = f"ledger.{text.split(' ')[0]}"
    assert message.startswith(f"semel.toml, line 4: {key} {what}")
    assert fix.startswith(f"{key} is ")
    assert fix.endswith(allowed)


def test_a_node_that_cannot_be_a_name_in_the_ledger() -> None:
    assert "store.node = 'a b'" in complaint('[store]\nnode = "a b"\n')[0]


def test_a_value_over_several_lines_is_found_where_it_begins() -> None:
    assert "line 3" in complaint("[ledger]\n\nsegment_rows = [\n  1,\n  2,\n]\n# the end\n")[0]


def test_a_section_that_is_given_as_a_value() -> None:
    message, fix = complaint('store = "sqlite:///x.db"\n')
    assert message == "semel.toml, line 1: 'store' is a section, not a value"
    assert fix == "write it as [store] with keys below"


def test_several_mistakes_are_told_at_once() -> None:
    message, fix = complaint("[store]\nurll = 1\n[ledger]\nlease_s = 0\n")
    assert message.splitlines() == [
        "semel.toml, line 2: there is no key 'urll' in [store] (did you mean 'url'?)",
        "semel.toml, line 4: ledger.lease_s = 0 should be greater than or equal to 1 "
        "(ledger.lease_s is seconds after which a killed export is taken over: 1 to 3600)",
    ]
    assert fix == "fix these 2 settings"


def test_what_is_not_toml_is_named_with_its_line() -> None:
    message, _ = complaint("[store]\nurl = sqlite\n")
    assert message.startswith("semel.toml is not TOML")
    assert "line 2" in message


def test_a_file_that_is_missing_unreadable_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"not UTF-8 text \(byte 0\)"):
        load_config(tmp_path / "binary.toml")


# -- pipelines

PIPELINE = '[[pipeline]]\nname = "a"\nfrom = "hub/x"\n'


def test_a_pipeline_is_read_with_its_defaults() -> None:
    [pipeline] = load(PIPELINE).pipelines
    assert pipeline == PipelineSection(**{"name": "a", "from": "hub/x"})
    assert pipeline.from_ == (InputSection(stream="hub/x"),)
    assert (pipeline.dedupe, pipeline.order, pipeline.start) == ("id", None, "earliest")


def test_inputs_and_order_may_be_written_short_or_in_full() -> None:
    inputs = '["x", {store = "sqlite:///b.db", stream = "y"}]'
    text = f'[[pipeline]]\nname = "b"\nfrom = {inputs}\n[pipeline.order]\ngap = "skip"\n'
    first, second = load(PIPELINE + "order = true\n" + text).pipelines
    assert first.order == OrderSection()
    assert second.order == OrderSection(gap="skip")
    assert second.from_ == (InputSection(stream="x"), InputSection(stream="y", store="sqlite:///b.db"))
    assert load(PIPELINE + "order = false\n").pipelines[0].order is None


@pytest.mark.parametrize(
    ("line", "message", "fix"),
    [
        ("ordr = true", "there is no key 'ordr' in [[pipeline]]", "did you mean 'order'?"),
        ("order = 5", "pipeline.order = 5 should be a valid dictionary", "pipeline.order is true, false, or a table"),
        (
            'order = {gap = "x"}',
            "pipeline.order.gap = 'x' should be 'wait' or 'skip'",
            "pipeline.order.gap is 'wait' or",
        ),
        ("order = {gapp = 1}", "there is no key 'gapp' in [[pipeline]].order", "did you mean 'gap'?"),
        (
            'handler = "f"',
            "pipeline.handler = 'f' String should match pattern",
            "pipeline.handler is the function that",
        ),
        ("lease_s = 0", "pipeline.lease_s = 0 should be greater than or equal to 1", "pipeline.lease_s is seconds"),
        ('start = "now"', "pipeline.start = 'now' should be 'earliest'", "pipeline.start is 'earliest', 'latest' or"),
    ],
)
def test_a_mistake_in_the_second_pipeline_is_found_on_its_line(line: str, message: str, fix: str) -> None:
    said, mend = complaint(f'{PIPELINE}\n[[pipeline]]\nname = "b"\nfrom = "x"\n{line}\n')
    assert said.startswith(f"semel.toml, line 8: {message}")
    assert mend.startswith(fix)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("[]", "pipeline.from = [] should name at least one stream"),
        ('[""]', "pipeline.from.stream = '' String should have at least 1 character"),
        ("5", "pipeline.from = 5 should be a valid dictionary"),
        ('["x", {store = "sqlite:///x.db"}]', "[[pipeline]].from has no 'stream'"),
        ('[{stream = "x", stor = "y"}]', "there is no key 'stor' in [[pipeline]].from"),
    ],
)
def test_a_mistake_in_the_inputs(inputs: str, message: str) -> None:
    said, fix = complaint(f'[[pipeline]]\nname = "a"\nfrom = {inputs}\n')
    assert said.startswith(f"semel.toml, line 3: {message}")
    assert fix


def test_a_key_that_is_missing_is_told_at_its_pipeline() -> None:
    message, fix = complaint(PIPELINE + '\n[[pipeline]]\nname = "b"\n')
    assert message == "semel.toml, line 5: [[pipeline]] has no 'from'"
    assert fix.startswith("pipeline.from is a stream")


def test_two_pipelines_of_one_name() -> None:
    message, fix = complaint(PIPELINE + PIPELINE)
    assert message == "semel.toml, line 5: there is another pipeline 'a' above"
    assert fix == "give each pipeline a name of its own"


@pytest.mark.parametrize("text", ['[pipeline]\nname = "a"\n', "pipeline = 5\n", 'pipeline = ["a"]\n'])
def test_pipelines_that_are_no_list_of_tables(text: str) -> None:
    message, fix = complaint(text)
    assert message == "semel.toml, line 1: 'pipeline' is a list of tables"
    assert fix == "write each as [[pipeline]] with keys below"


# -- Spark


def test_the_settings_of_spark_are_a_table_of_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load('[spark]\nmaster = "yarn"\n[spark.settings]\n"spark.a" = "1"\n').spark.settings == {"spark.a": "1"}
    message, fix = complaint("[spark]\n\nsettings = {a = 1}\n")
    assert message == "semel.toml, line 3: spark.settings.a = 1 should be a valid string"
    assert "each value a string" in fix
    monkeypatch.setenv("SEMEL_SPARK__SETTINGS", '{"spark.b": "2"}')
    assert load("").spark.settings == {"spark.b": "2"}


@pytest.mark.parametrize("memory", ["4", "4gb", "0g", "-1m", "g"])
def test_memory_needs_a_unit(memory: str) -> None:
    assert "such as 512m or 4g" in complaint(f'[spark]\nmemory = "{memory}"\n')[1]


# -- the pub/sub server

HUB = '[[pubsub.hub]]\nname = "Chat"\n'
HANDLER = '[[pubsub.hub.handler]]\nurl = "https://app.example/{event}"\n'


def test_the_server_is_read_with_its_defaults() -> None:
    """They are what the parts themselves have as defaults."""
    config = load_config()
    listener, hub = ListenerLimits(), HubOptions()
    server, pubsub = config.server, config.pubsub
    assert (server.host, server.port, server.banner, server.metrics) == ("127.0.0.1", 8080, True, "role")
    assert (server.connections, server.connections_per_address) == (
        listener.connections,
        listener.connections_per_address,
    )
    assert (server.connection_rate, server.request_rate) == (listener.connection_rate, listener.request_rate)
    assert server.frame_bytes == listener.frame_bytes == FRAME_BYTES_MAX
    assert (pubsub.recovery_s, pubsub.hub) == (hub.recovery_s, ())
    assert (pubsub.backlog_count, pubsub.backlog_bytes) == (hub.backlog_count, hub.backlog_bytes)
    assert pubsub.backlog_age_s == hub.backlog_age_s
    assert config.auth.keys is config.auth.primary_key is config.auth.secondary_key is None


def test_the_server_in_the_file_and_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_SERVER__PORT", "9000")
    monkeypatch.setenv("SEMEL_SERVER__ENDPOINTS", '["https://a.example"]')
    monkeypatch.setenv("SEMEL_PUBSUB__RECOVERY_S", "5")
    monkeypatch.setenv("SEMEL_AUTH__PRIMARY_KEY", "p" * 32)
    config = load('[server]\nhost = "0.0.0.0"\nport = 80\n[pubsub]\nbacklog_count = 7\n')
    assert (config.server.host, config.server.port, config.server.endpoints) == (
        "0.0.0.0",
        9000,
        ("https://a.example",),
    )
    assert (config.pubsub.recovery_s, config.pubsub.backlog_count) == (5.0, 7)
    assert config.auth.primary_key == "p" * 32


def test_handlers_of_a_hub_keep_their_order() -> None:
    second = '[[pubsub.hub.handler]]\nurl = "http://b.example"\nsystem_events = ["connect"]\nauth = "key"\n'
    chat, other = load(f'{HUB}{HANDLER}user_events = "*"\n{second}[[pubsub.hub]]\nname = "other"\n').pubsub.hub
    assert (chat.name, other.name, other.handler) == ("chat", "other", ())
    assert chat.handler == (
        HandlerSection(url="https://app.example/{event}", user_events="*"),
        HandlerSection(url="http://b.example", system_events=("connect",), auth="key"),
    )


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("[server]\nprot = 1\n", "line 2: there is no key 'prot' in [server]", "did you mean 'port'?"),
        ("[server]\nport = 65536\n", "line 2: server.port = 65536 should be less than", "server.port is the port"),
        ('[server]\nmetrics = "x"\n', "line 2: server.metrics = 'x' should be 'role'", "server.metrics is 'role' or"),
        ('[server]\nendpoints = "x"\n', "line 2: server.endpoints = 'x' should be", "server.endpoints is a list"),
        ('[server]\n\nendpoints = ["ftp://x"]\n', "line 3: the endpoint is no address", "write http://"),
        ("[pubsub]\nrecovery_s = 0\n", "line 2: pubsub.recovery_s = 0 should be greater", "pubsub.recovery_s is"),
        ('[pubsub]\nhub = "chat"\n', "line 2: pubsub.hub = 'chat' should be a valid", "pubsub.hub is tables"),
        ("[[pubsub.hub]]\nnam = 1\n", "line 1: [[pubsub.hub]] has no 'name'", "pubsub.hub.name is the hub's name"),
        ('[[pubsub.hub]]\n\nname = "a b"\n', "line 3: 'a b' is not a name of a hub", "begin with a letter"),
        (f"{HUB}x = 1\n", "line 3: there is no key 'x' in [[pubsub.hub]]", "the keys are: handler, name"),
        (f"{HUB}{HANDLER}", "line 3: the event handler 'https://app.example/{event}' takes no event", "name system_ev"),
        (f"{HUB}{HANDLER}urll = 1\n", "line 5: there is no key 'urll' in [[pubsub.hub.handler]]", "did you mean 'url'"),
        (
            f'{HUB}{HANDLER}system_events = ["x"]\n',
            "line 5: pubsub.hub.handler.system_events = 'x'",
            "pubsub.hub.handl",
        ),
        (f'{HUB}{HANDLER}user_events = "a b"\n', "line 3: 'a b' in user_events is neither *", 'use "*" for all'),
        (f'{HUB}[[pubsub.hub]]\nname = "CHAT"\n', "line 4: there is another hub 'chat' above", "give each hub a name"),
        ('[auth]\nprimary_key = "short"\n', "line 2: the primary key has 5 characters", "use a long random key"),
        ('[auth]\nsecondary_key = "short"\n', "line 2: the secondary key has 5 char", "use a long random key"),
        (f'[auth]\nsecondary_key = "{"s" * 32}"\n', "line 1: [auth] has a secondary_key without", "set primary_key"),
        (f'[auth]\nkeys = "k"\nprimary_key = "{"s" * 32}"\n', "line 1: [auth] has both keys", "leave out one"),
    ],
)
def test_a_mistake_about_the_server_is_found_on_its_line(text: str, message: str, fix: str) -> None:
    said, mend = complaint(text)
    assert f"semel.toml, {message}" in said
    assert fix in mend if "\n" not in said else fix in said


@pytest.mark.parametrize("name", ["primary_key", "secondary_key"])
def test_no_message_shows_a_key(name: str) -> None:
    for key in ("secret one", "secret;" * 5):
        with pytest.raises(ConfigError) as caught:
            load(f'[auth]\n{name} = "{key}"\n')
        assert "secret" not in str(caught.value)
    assert "secret" not in repr(load(f'[auth]\nprimary_key = "{"secret" * 6}"\n'))


# -- mistakes in the environment


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("SEMEL_STORE__ULR", "there is no key 'ulr' in [store]"),
        ("SEMEL_STROE__URL", "there is no section [stroe]"),
        ("SEMEL_STORE", "'store' is a section, not a value"),
        ("SEMEL_STORE__URL__X", "store.url = {'x': '5'} should be a valid string"),
        ("SEMEL_LEDGER__SEGMENT_ROWS", "ledger.segment_rows = '5' should be greater than or equal to 1000"),
        ("SEMEL_PIPELINE", "[[pipeline]] can only be set in the file"),
        ("SEMEL_PIPELINE__NAME", "[[pipeline]] can only be set in the file"),
        ("SEMEL_SPARK__MEMORY", "spark.memory = '5' String should match pattern '^[1-9][0-9]*[mg]$'"),
        ("SEMEL_SPARK__SETTINGS", "spark.settings = 5 should be a valid dictionary"),
        ("SEMEL_SERVER__ENDPOINTS", "server.endpoints = 5 should be a valid tuple"),
        ("SEMEL_AUTH__PRIMARY_KEY", "the primary key has 1 characters, and needs 32 to 512"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    variable: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "5")
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert caught.value.message == f"environment variable {variable}: {message}"
    assert caught.value.fix


@pytest.mark.parametrize("variable", ["SEMEL_SPARK__SETTINGS", "SEMEL_SERVER__ENDPOINTS", "semel_pubsub__hub"])
def test_a_table_in_the_environment_that_is_not_json(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "{spark.a")
    with pytest.raises(ConfigError, match=f"environment variable {variable}: this is not JSON"):
        load_config()


def test_variables_that_are_not_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_DEBUG", "1")
    monkeypatch.setenv("SEMEL_TEST_POSTGRES", "postgresql://x")
    assert load_config().store == StoreSection()


# -- where a key stands


@given(st.lists(st.sampled_from(["", "# note", "  # [store]"])), st.integers(0, 3))
def test_a_key_is_found_whatever_stands_before_it(before: list[str], between: int) -> None:
    text = "\n".join([*before, "[store]", *[""] * between, 'url = """\n[ledger]\n"""', 'node = "a"'])
    start = len(before) + 1
    assert line_of(text, ("store",)) == start
    assert line_of(text, ("store", "url")) == start + between + 1
    assert line_of(text, ("store", "node")) == start + between + 4


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ('store.url = "x"', ("store", "url"), 1),
        ('a = 1\nstore = {url = "x", node = "y"}', ("store", "node"), 2),
        ("[[hub]]\nname = 1", ("hub",), 1),
        ("[[hub]]\nname = 1\n[[hub]]\n\nname = 2", ("hub", 1), 3),
        ("[[hub]]\nname = 1\n[[hub]]\n\nname = 2", ("hub", 1, "name"), 5),
        ("a = [\n  1,\n  2,\n]", ("a", 1), 1),
    ],
)
def test_keys_written_in_other_ways(text: str, path: tuple[str | int, ...], line: int) -> None:
    assert line_of(text, path) == line


def test_configuration_cannot_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config().store.url = "x"

"""Options of the readers: accepted values, and errors that list them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orbitmq.errors import ConfigError
from orbitmq.spark.options import EARLIEST, LATEST, SourceOptions, access, client_settings, parse_offsets

LEAST = {"namesrvAddr": "127.0.0.1:9876", "topic": "orders"}


def parse(more: Mapping[str, str] | None = None, *, streaming: bool = False) -> SourceOptions:
    return SourceOptions.parse({**LEAST, **(more or {})}, streaming=streaming)


def test_defaults_are_those_of_sparks_kafka_reader() -> None:
    batch, stream = parse(), parse(streaming=True)
    assert (batch.starting, batch.ending, stream.starting) == (EARLIEST, LATEST, LATEST)
    assert batch.fail_on_data_loss
    assert batch.topics == ("orders",)


def test_names_are_compared_without_case_and_aliases_are_known() -> None:
    options = SourceOptions.parse(
        {"NAMESERVER": "a:1", "TOPIC": " x , y ,x", "FAILONDATALOSS": "FALSE", "subexpression": "A || B"},
        streaming=False,
    )
    assert options.access.name_servers == "a:1"
    assert options.topics == ("x", "y")
    assert not options.fail_on_data_loss
    assert options.tags == "A || B"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"topic": ""}, "one of the options 'topic' and 'topicPattern'"),
        ({"topicPattern": "a.*"}, "not both"),
        ({"namesrvAddr": " "}, "option 'namesrvAddr' is required"),
        ({"topic": ","}, "names no topic"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"failOnDataloss ": "true"}, "did you mean 'failOnDataLoss'"),
        ({"startingOffsets": "first"}, "'earliest', 'group', 'latest' or JSON".replace("'", '"')),
        ({"startingOffsets": "group"}, "name the group"),
        ({"startingOffsetsByTimestamp": "latest"}, "JSON such as"),
        ({"startingOffsetsByTimestampStrategy": "maybe"}, "error or latest"),
        ({"maxTriggerDelay": "soon"}, "as in 15m"),
        ({"maxBytesPerTrigger": "5"}, "to streams"),
        ({"startingOffsets": '{"t": {"a": {"x": 1}}}'}, "accepted are"),
        ({"startingOffsets": '{"t": {"a": {"0": -3}}}'}, "out of range"),
        ({"endingOffsets": "earliest"}, "accepted are"),
        ({"endingOffsets": '{"t": {"a": {"0": -2}}}'}, "out of range"),
        ({"minPartitions": "none"}, "a whole number"),
        ({"minPartitions": "0"}, "1 to 1000000"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"maxOffsetsPerTrigger": "5"}, "to streams"),
        ({"tags": "a", "sql": "b = 1"}, "exclude each other"),
        ({"accessKey": "a"}, "set together"),
    ],
)
def test_what_is_wrong_is_refused_with_what_is_accepted(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(given)
    assert problem in str(caught.value)


def test_a_stream_refuses_an_end_and_a_pattern_that_is_none() -> None:
    for name in ("endingOffsets", "endingTimestamp"):
        with pytest.raises(ConfigError, match="a stream has no end"):
            parse({name: "latest"}, streaming=True)
    with pytest.raises(ConfigError, match="not a regular expression"):
        SourceOptions.parse({"namesrvAddr": "a:1", "topicPattern": "("}, streaming=True)
    with pytest.raises(ConfigError, match="is more than"):
        parse({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, streaming=True)


def test_what_spark_adds_is_left_alone_and_nothing_else() -> None:
    assert parse({"serialization.format": "1", "checkpointLocation": "x"}) == parse()
    for given, problem in (
        ({"colour": "red"}, "there is no option 'colour'"),
        ({"kafka.bootstrap.servers": "a:1"}, "given as 'namesrvAddr'"),
        ({"startingOffsetsByTime": "{}"}, "did you mean 'startingOffsetsByTimestamp'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            parse(given)


def test_names_of_the_kafka_reader_mean_the_same() -> None:
    kafka = {"subscribe": "orders", "kafkaConsumer.pollTimeoutMs": "500", "maxTriggerDelay": "2m"}
    found = SourceOptions.parse({"namesrvAddr": "127.0.0.1:9876", **kafka}, streaming=True)
    assert (found.topics, found.pull_timeout_ms, found.trigger_delay_max_ms) == (("orders",), 500, 120_000)
    assert (
        SourceOptions.parse({"namesrvAddr": "a:1", "subscribePattern": "o.*"}, streaming=True).topic_pattern
        == "o.*"
    )


def test_queues_are_assigned_by_broker_or_on_all() -> None:
    given = {"namesrvAddr": "a:1", "assign": '{"t": {"a": [1, 0]}, "u": [2]}'}
    found = SourceOptions.parse(given, streaming=False)
    assert found.assigned == (("t", "a", 0), ("t", "a", 1), ("u", "", 2))
    assert found.topics == ("t", "u")
    for wrong in ("[]", "{}", '{"t": {"a": "0"}}', '{"t": [-1]}'):
        with pytest.raises(ConfigError, match="assign"):
            SourceOptions.parse({**given, "assign": wrong}, streaming=False)


def test_offsets_as_json_are_read_by_topic_broker_and_queue() -> None:
    assert parse_offsets("startingOffsets", '{"t": {"a": {"0": 7, "01": -1}}}') == {
        "t": {"a": {"0": 7, "1": -1}}
    }


def test_access_is_hashable_hides_its_secrets_and_tells_tls_from_its_files() -> None:
    keys = {"accessKey": "me", "secretKey": "hidden-word", "tls.keyPassword": "hidden-too"}
    found = access(LEAST | keys)
    assert hash(found) == hash(access(LEAST | keys))
    assert "hidden" not in repr(found)
    assert found.tls is not None
    assert access(LEAST).tls is None
    assert access(LEAST | {"tls.enable": "true"}).tls is not None
    assert client_settings(LEAST) == {}
    assert set(client_settings(LEAST | {"accessKey": "a", "secretKey": "b", "tls.enable": "true"})) == {
        "credentials",
        "tls",
    }

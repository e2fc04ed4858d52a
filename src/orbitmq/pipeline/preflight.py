"""Checks made before Spark starts, so that a wrong address or topic is reported within a second and in one line."""

from __future__ import annotations

from collections.abc import Mapping

from orbitmq.errors import ConfigError, OrbitError, TopicNotFound
from orbitmq.model.names import AUTO_CREATE_TOPIC
from orbitmq.pipeline import spec
from orbitmq.pipeline.plan import Plan, Query
from orbitmq.pipeline.sources import cluster_options, source_options
from orbitmq.pipeline.steps import import_function
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.connections import server_client
from orbitmq.spark.errors import EnvironmentFault, SpecError
from orbitmq.spark.options import SourceOptions

__all__ = [
    "check_modules",
    "check_query",
    "check_servers",
    "check_source",
    "check_target",
    "require_topics",
]


def check_modules(plan: Plan) -> None:
    """Raises ``SpecError`` if the function of a Python step does not exist."""
    for number, step in enumerate(plan.pipeline.steps):
        if isinstance(step, spec.PythonStep):
            import_function(plan, step, f"steps[{number}]")


def check_servers(plan: Plan) -> None:
    """Raises ``SpecError`` or ``EnvironmentFault`` if name servers, topics or options cannot be used."""
    for name, source in plan.pipeline.sources.items():
        check_source(plan, name, source)
    for query in plan.queries:
        check_query(plan, query)


def check_source(plan: Plan, name: str, source: spec.Source) -> None:
    """Like ``check_servers``, for one source."""
    if not isinstance(source, spec.TopicSource):
        return
    streaming = plan.streaming and not source.static
    given = source_options(plan.pipeline, source)
    try:
        options = SourceOptions.parse(given | {"retryTimeoutMs": "0"}, streaming=streaming)
        if options.topics:
            require_topics(options, options.topics)
        cluster = Cluster(options)
        queues = cluster.queues()
        cluster.check_assigned(queues)
        cluster.check_filter(queues)
    except ConfigError as error:
        raise SpecError(f"sources.{name}", str(error)) from error
    except (EnvironmentFault, OrbitError) as error:
        raise EnvironmentFault(f"sources.{name}: {error}") from error


def check_query(plan: Plan, query: Query) -> None:
    """Like ``check_servers``, for one sink."""
    if isinstance(query.sink, spec.TopicSink):
        _check_sink(f"sink {query.name}", cluster_options(plan.pipeline, query.sink), query.sink.topic)


def require_topics(options: SourceOptions, topics: tuple[str, ...]) -> None:
    """Raises ``EnvironmentFault`` unless all these topics are registered with a name server."""
    for topic in topics:
        try:
            server_client(options.access).fetch_route(topic)
        except TopicNotFound as error:
            raise EnvironmentFault(
                f"there is no topic {topic!r} at {options.access.name_servers}: create it first, or check the name"
            ) from error


def check_target(options: Mapping[str, str]) -> None:
    """Raises ``EnvironmentFault`` unless the name server to which messages will be sent answers."""
    _check_sink("target", options, "")


def _check_sink(where: str, given: Mapping[str, str], topic: str) -> None:
    known = {
        key: given[key] for key in given if key.lower().startswith(("namesrv", "access", "secret", "tls"))
    }
    try:
        options = SourceOptions.parse({**known, "topic": topic or AUTO_CREATE_TOPIC}, streaming=False)
    except ConfigError as error:
        raise SpecError(where, str(error)) from error
    try:
        require_topics(options, (topic or AUTO_CREATE_TOPIC,))
    except EnvironmentFault as missing:
        if not topic:
            # The name server answered. Topics named in a column are looked up when rows are sent.
            return
        try:
            require_topics(options, (AUTO_CREATE_TOPIC,))
        except EnvironmentFault:
            raise EnvironmentFault(f"{where}: {missing}") from missing
    except OrbitError as error:
        raise EnvironmentFault(f"{where}: {error}") from error

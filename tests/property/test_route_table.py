"""Any history keeps the invariants of the route table, and the prepared answers equal freshly made ones."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.namesrv.brokers import check_invariants, key, registration, topic_config

from orbitmq.errors import ServerError
from orbitmq.model.route import QueueData
from orbitmq.namesrv.registration import RouteRules
from orbitmq.namesrv.route_cache import RouteCache
from orbitmq.namesrv.route_table import RouteTable
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.bodies.route import encode_route

TOPICS = ("T", "U", "V", "W")
names = st.sampled_from("ab")
ids = st.integers(0, 2)
clusters = st.sampled_from(("C", "D"))
hosts = st.sampled_from(("x:1", "y:1", "z:1"))
topics = st.sampled_from(TOPICS)
connections = st.sampled_from(("c1", "c2", "c3"))


class RouteTableMachine(RuleBasedStateMachine):
    """Brokers come, move, fall silent and go; operators delete topics and change permissions."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.table = RouteTable(self.clock, RouteRules(), lambda changed: self.cache.forget(changed))
        self.cache = RouteCache(self.table.route, 4_000)
        """Small enough to be emptied now and then."""

    @rule(
        name=names,
        broker_id=ids,
        address=hosts,
        cluster=clusters,
        held=st.lists(st.tuples(topics, st.integers(1, 3), st.integers(0, 7)), max_size=4),
        version=st.integers(1, 3),
        epoch=st.integers(0, 2),
        acting=st.sampled_from((None, False, True)),
        connection=connections,
        zone=st.sampled_from((None, "z1")),
        filter_servers=st.sampled_from(([], ["f:1"])),
        timeout_ms=st.sampled_from((None, 500)),
    )
    def register(self, held: list[tuple[str, int, int]], **fields: object) -> None:
        configs = [topic_config(topic, queues=queues, perm=perm) for topic, queues, perm in held]
        try:
            self.table.register(registration(configs, **fields))  # type: ignore[arg-type]  # values of several types by name
        except ServerError:
            assert len({topic for topic, _, _ in held}) == 1

    @rule(name=names, broker_id=ids, cluster=clusters)
    def unregister(self, name: str, broker_id: int, cluster: str) -> None:
        self.table.unregister(key(name, broker_id, cluster), name)

    @rule(address=hosts, name=names, cluster=clusters)
    def unregister_address(self, address: str, name: str, cluster: str) -> None:
        self.table.unregister(key(name, 0, cluster)._replace(address=address), name)

    @rule(connection=connections)
    def lose_connection(self, connection: str) -> None:
        self.table.connection_lost(connection)

    @rule(ms=st.integers(0, 1_000))
    def let_time_pass(self, ms: int) -> None:
        self.clock.advance(ms)
        self.table.expire()

    @rule(name=names)
    def wipe(self, name: str) -> None:
        self.table.wipe_write_perm(name)

    @rule(name=names)
    def add(self, name: str) -> None:
        self.table.add_write_perm(name)

    @rule(topic=topics, cluster=st.sampled_from((None, "C", "D")))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)

    @rule(topic=topics, name=names)
    def add_topic(self, topic: str, name: str) -> None:
        self.table.add_topic(
            topic, [QueueData(broker_name=name, perm=6, read_queue_nums=1, write_queue_nums=1)]
        )

    @rule(acting=st.booleans(), delete=st.booleans())
    def change_rules(self, acting: bool, delete: bool) -> None:
        self.table.rules = RouteRules(120_000, acting, delete)
        self.cache.clear()

    @invariant()
    def table_is_consistent(self) -> None:
        check_invariants(self.table)

    @invariant()
    def cache_is_coherent(self) -> None:
        for topic in TOPICS:
            route = self.table.route(topic)
            for standard in (True, False):
                fresh = None if route is None else encode_route(route, standard=standard)
                assert self.cache.body(topic, standard=standard) == fresh


TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)

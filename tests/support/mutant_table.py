"""The mutants of ``mutants.py``: one-line faults that no test noticed at first, reverted fixes, and faults that only
tests with servers noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MUTANTS", "Edit", "Mutant"]


@dataclass(frozen=True, slots=True)
class Edit:
    """A text that occurs exactly once in ``file``, and its replacement."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and the tests that must notice it."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


_CLIENT: Final = "src/orbitmq/client"
_BROKER: Final = "src/orbitmq/broker"
_SEED_ROWS: Final = "tests/conformance/test_seed_rows.py"
_SCHEDULE: Final = "tests/unit/broker/delivery/test_schedule.py"

_SURVIVED_ONCE: Final = (
    Mutant(
        "no route has the code of another error",
        (
            Edit(
                "src/orbitmq/codes.py",
                "NOT_FOUND_TOPIC_EXCEPTION = 10005",
                "NOT_FOUND_TOPIC_EXCEPTION = 10004  # noqa: PIE796",
            ),
        ),
        ("tests/conformance/test_faults.py::test_missing_topic_without_auto_creation_says_what_to_do",),
    ),
    Mutant(
        "the first attempt of a send is not reported to the picker",
        (
            Edit(
                f"{_CLIENT}/produce/sender.py",
                "self.picker.report(target.broker_name, (now() - started) * 1000)",
                "pass",
            ),
        ),
        (f"{_SEED_ROWS}::test_slow_and_failing_brokers_are_avoided",),
    ),
    Mutant(
        "a repeated attempt of a send is not reported to the picker",
        (
            Edit(
                f"{_CLIENT}/produce/sender.py",
                "self.picker.report(target.broker_name, (began_with_s - trial.left_s) * 1000)",
                "pass",
            ),
        ),
        (f"{_SEED_ROWS}::test_slow_and_failing_brokers_are_avoided",),
    ),
    Mutant(
        "a failed attempt of a send is not reported to the picker",
        (
            Edit(
                f"{_CLIENT}/produce/sender.py",
                "self.picker.report(broker_name, 0, failed=True)",
                "pass",
            ),
        ),
        (f"{_SEED_ROWS}::test_slow_and_failing_brokers_are_avoided",),
    ),
    Mutant(
        "an attempt of a plain producer is not reported to the picker",
        (Edit(f"{_CLIENT}/produce/blocking.py", "if self._avoids_slow:", "if False:"),),
        (f"{_SEED_ROWS}::test_slow_and_failing_brokers_are_avoided",),
    ),
    Mutant(
        "a queue id below 0 is always queue 0",
        (
            Edit(
                f"{_BROKER}/handlers/send.py", "return random.randrange(config.write_queue_nums)", "return 0"
            ),
        ),
        ("tests/unit/broker/test_send_handlers.py",),
    ),
    Mutant(
        "a flush that failed is answered with SUCCESS",
        (
            Edit(
                f"{_BROKER}/delivery/durability.py",
                "ResponseCode.SUCCESS if done else ResponseCode.FLUSH_DISK_TIMEOUT",
                "ResponseCode.SUCCESS",
            ),
        ),
        ("tests/unit/broker/delivery/test_durability.py",),
    ),
    Mutant(
        "the broker never suggests a slave",
        (Edit(f"{_BROKER}/handlers/pull.py", "if self.config.slave_read_enabled:", "if False:"),),
        ("tests/unit/broker/test_pull_handlers.py",),
    ),
    Mutant(
        "the client ignores the suggested replica",
        (
            Edit(
                f"{_CLIENT}/consume/puller.py",
                "data.read_address(self._suggested.get(queue, MASTER_ID))",
                "data.read_address(MASTER_ID)",
            ),
        ),
        (f"{_SEED_ROWS}::test_pull_goes_to_the_replica_suggested_or_to_another_one_after_a_failure",),
    ),
    Mutant(
        "the client tries no other replica after a failure",
        (Edit(f"{_CLIENT}/consume/puller.py", "        if queue in self._asked:", "        if False:"),),
        (f"{_SEED_ROWS}::test_pull_goes_to_the_replica_suggested_or_to_another_one_after_a_failure",),
    ),
    Mutant(
        "the delay cursors are not saved every ten seconds",
        (
            Edit(
                f"{_BROKER}/delivery/schedule.py",
                'self._tasks.start(every(self._config.delay_offset_flush_interval_ms / 1000, self._save), "save")',
                "pass",
            ),
        ),
        (f"{_SCHEDULE}::test_cursors_are_saved_every_ten_seconds_and_only_when_they_moved",),
    ),
    Mutant(
        "a delay cursor outside its queue is not corrected while running",
        (
            Edit(
                f"{_BROKER}/delivery/schedule.py",
                "cursor = self._corrected(level, self._cursors.get(level, 0))",
                "cursor = self._cursors.get(level, 0)",
            ),
        ),
        (_SCHEDULE,),
    ),
    Mutant(
        "the pull consumer stores an offset with every pull",
        (
            Edit(
                f"{_CLIENT}/consume/pull_consumer.py",
                "        return await self._puller.pull(\n",
                "        await self.update_offset(queue, offset)\n        return await self._puller.pull(\n",
            ),
        ),
        (f"{_SEED_ROWS}::test_pull_consumer_stores_offsets_only_when_asked",),
    ),
    Mutant(
        "the limit of cached bytes has no effect",
        (
            Edit(
                f"{_CLIENT}/consume/fetching.py",
                "bytes_max=options.cached_bytes_max,\n            span_max",
                "bytes_max=1 << 60,\n            span_max",
            ),
        ),
        (f"{_SEED_ROWS}::test_bytes_and_span_of_the_cache_are_limited",),
    ),
    Mutant(
        "the limit of the span of offsets has no effect",
        (
            Edit(
                f"{_CLIENT}/consume/fetching.py",
                "span_max=0 if options.orderly else options.span_max",
                "span_max=0",
            ),
        ),
        (f"{_SEED_ROWS}::test_bytes_and_span_of_the_cache_are_limited",),
    ),
)

_FIXED: Final = (
    Mutant(
        "a commit for a queue that the topic does not have is accepted",
        (
            Edit(
                f"{_BROKER}/handlers/offsets.py",
                "if queue_id >= topic.read_queue_nums and",
                "if False and",
            ),
        ),
        ("tests/unit/broker/test_offset_handlers.py",),
    ),
    Mutant(
        "a send is appended although the lease ended since it was checked",
        (
            Edit(
                f"{_BROKER}/delivery/put.py",
                "self._refuse_when_closed()\n        return self._store.append_batch(messages)",
                "pass\n        return self._store.append_batch(messages)",
            ),
        ),
        ("tests/unit/broker/delivery/test_put.py",),
    ),
    Mutant(
        "a record forged in the body of a message is believed",
        (
            Edit(
                f"{_BROKER}/security.py",
                "if not units or units[0][:2] != (log_offset, len(raw)):",
                "if False:",
            ),
        ),
        ("tests/integration/test_rights_on_records.py",),
    ),
    Mutant(
        "a call without time left blames the network",
        (
            Edit(
                "src/orbitmq/transport/client.py",
                "            if timeout_s <= 0:  # used up",
                "            if False:  # used up",
            ),
        ),
        ("tests/integration/test_transport.py::test_call_without_time_left_does_not_blame_the_network",),
    ),
    Mutant(
        "a heartbeat is answered before the new retry topic is routed",
        (
            Edit(
                f"{_BROKER}/handlers/clients.py",
                "if len(self.topics.configs) == taken.topics_before or not self.known_elsewhere:",
                "if True:",
            ),
        ),
        (
            "tests/integration/test_broker_sends.py::"
            "test_answer_to_the_first_heartbeat_of_a_group_means_that_its_retry_topic_is_routed",
        ),
    ),
    Mutant(
        "a start at the end skips the first message of a queue",
        (
            Edit(
                f"{_CLIENT}/consume/queue_offsets.py",
                "await self.store.stored(queue) if end > 0 and not is_new_to else -1",
                "-1",
            ),
        ),
        (
            "tests/conformance/test_starting.py::"
            "test_first_message_that_arrives_during_the_start_at_the_end_is_not_missed",
        ),
    ),
    Mutant(
        "a bug in one part ends the round of a slave's copy",
        (
            Edit(
                f"{_BROKER}/replication/metadata_sync.py",
                "except Exception:  # a bug in one part must not",
                "except ZeroDivisionError:  # a bug in one part must not",
            ),
        ),
        ("tests/unit/broker/replication/test_metadata_sync.py",),
    ),
    Mutant(
        "new trusted authorities are read only after a restart",
        (
            Edit(
                "src/orbitmq/transport/tls.py",
                "if self._trusted and _all_changed(self._seen_trusted, stamps):",
                "if False:",
            ),
        ),
        ("tests/unit/transport/test_tls.py",),
    ),
    Mutant(
        "enableScheduleMessageStats has no effect",
        (
            Edit(
                f"{_BROKER}/delivery/schedule.py", "if not self._config.schedule_stats_enabled:", "if False:"
            ),
        ),
        (_SCHEDULE,),
    ),
    Mutant(
        "committed() returns 0 for a group that never committed",
        (
            Edit(
                f"{_CLIENT}/consume/consumer_base.py",
                "return await self._offsets.store.stored(queue, or_zero=False)",
                "return await self._offsets.store.stored(queue)",
            ),
        ),
        (f"{_SEED_ROWS}::test_pull_consumer_stores_offsets_only_when_asked",),
    ),
    Mutant(
        "a failed send of a plain producer says 0 ms",
        (
            Edit(
                f"{_CLIENT}/produce/sender.py",
                "_Trial(self._options, deadline, now, fixed, started - after.spent_s)",
                "_Trial(self._options, deadline, now, fixed, started)",
            ),
        ),
        (f"{_SEED_ROWS}::test_failed_send_reports_its_attempts_time_and_code",),
    ),
    Mutant(
        "a delay level with a sign or spaces is read as Python reads it",
        (
            Edit(
                f"{_BROKER}/delivery/parking.py",
                "return max(0, parse_delay_level(text))",
                "return max(0, int(text))",
            ),
        ),
        (_SCHEDULE,),
    ),
)

_ADMIN: Final = (
    Mutant(
        "an offset is moved beyond what the queue holds",
        (Edit("src/orbitmq/admin/moves.py", "min(max(then, low), high)", "then"),),
        ("tests/unit/admin/test_groups.py",),
    ),
    Mutant(
        "the order of a topic forgets the other brokers",
        (Edit("src/orbitmq/admin/topics.py", '[*old.split(";"), entry]', "[entry]"),),
        ("tests/unit/admin/test_topics.py",),
    ),
    Mutant(
        "a change stops at the first server that fails",
        (
            Edit(
                "src/orbitmq/admin/session.py",
                "                failures[address] = error\n",
                "                failures[address] = error\n                break\n",
            ),
        ),
        ("tests/unit/admin/test_session.py",),
    ),
    Mutant(
        "a setting with two lines is sent as two settings",
        (
            Edit(
                "src/orbitmq/admin/base.py",
                'f"{key}={_one_line(value)}\\n"',
                'f"{key}={value}\\n"',
            ),
        ),
        ("tests/unit/admin/test_name_servers.py",),
    ),
)

_RECORDS: Final = "tests/integration/test_rights_on_records.py"
_NEEDS_TESTS: Final = "tests/unit/auth/test_needs.py"
_PROXY_RIGHTS: Final = "tests/integration/test_proxy_rights.py"
_NEEDS: Final = "src/orbitmq/auth/needs.py"
_PROXY: Final = "src/orbitmq/proxy"

_ACCESS: Final = (
    Mutant(
        "any record may be sent back",
        (
            Edit(
                _NEEDS,
                'yield from _on_record(asked, _whole_number(asked.fields.get("offset", "")), SUB)\n\n\ndef _consume',
                "yield from ()\n\n\ndef _consume",
            ),
        ),
        (_NEEDS_TESTS,),
    ),
    Mutant(
        "a pop reads retry topics it shares with others",
        (Edit(_NEEDS, "if facts.is_strict and not topic", "if False and not topic"),),
        (_NEEDS_TESTS,),
    ),
    Mutant(
        "a retry belongs to its retry topic only",
        (
            Edit(
                "src/orbitmq/auth/stored.py",
                "    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):\n",
                "    if False:\n",
            ),
        ),
        ("tests/unit/auth/test_stored.py",),
    ),
    Mutant(
        "a record may be forged inside a body",
        (
            Edit(
                f"{_BROKER}/security.py",
                "if not units or units[0][:2] != (log_offset, len(raw)):",
                "if False:",
            ),
        ),
        (f"{_RECORDS}::test_record_forged_in_a_body_is_believed_by_no_check",),
    ),
    Mutant(
        "a half message is shown to any producer",
        (
            Edit(
                f"{_BROKER}/security.py",
                "return checker is None or checker.allows(producer.user, need, producer.connection.remote[0])",
                "return True",
            ),
        ),
        (f"{_RECORDS}::test_half_message_is_shown_only_to_publishers_of_its_real_topic",),
    ),
    Mutant(
        "a request on hold stays there after its refusal",
        (
            Edit(
                f"{_BROKER}/delivery/revocation.py",
                "                connection.send(answer)\n            return True",
                "                connection.send(answer)\n            return False",
            ),
        ),
        ("tests/unit/broker/delivery/test_revocation.py",),
    ),
    Mutant(
        "a field of a JSON header may have two values",
        (
            Edit(
                "src/orbitmq/auth/control.py",
                "_encode_json(fields) != raw and _contradicts_in_json(raw)",
                "len(_encode_json(fields)) != len(raw) and _contradicts_in_json(raw)",
            ),
        ),
        (_NEEDS_TESTS,),
    ),
    Mutant(
        "a receive on hold is answered whatever has changed",
        (Edit(f"{_PROXY}/service.py", "if self._rights_version != version:", "if False:"),),
        (_PROXY_RIGHTS,),
    ),
    Mutant(
        "a producer's heartbeat takes no right",
        (
            Edit(
                f"{_PROXY}/service.py",
                "            await self._allow(call, *(Right.pub_topic(topic) for topic in client.topics))\n",
                "            pass\n",
            ),
        ),
        (_PROXY_RIGHTS,),
    ),
    Mutant(
        "a retry topic named over gRPC takes the right on its group only",
        (Edit(f"{_PROXY}/access.py", "yield cluster_need(facts.cluster, Action.GET)", "pass"),),
        ("tests/unit/proxy/test_access.py",),
    ),
    Mutant(
        "a plain receipt handle is believed",
        (Edit(f"{_PROXY}/acking.py", "        if not is_ours:\n", "        if False:\n"),),
        (_PROXY_RIGHTS,),
    ),
    Mutant(
        "what only admins may do takes a signature",
        (
            Edit(
                "src/orbitmq/auth/acl_files.py",
                "return need.type is ResourceType.CLUSTER or _PERMITTED.isdisjoint(need.actions)",
                "return False",
            ),
        ),
        (
            "tests/integration/test_rights_of_every_request.py"
            "::test_eve_reads_and_changes_nothing_of_others_with_any_request[lists]",
        ),
    ),
)

MUTANTS: Final = (*_SURVIVED_ONCE, *_FIXED, *_ADMIN, *_ACCESS)

"""Signed sync sends compared with Apache 5.5.0 with authentication on, in alternating windows, loaded by the official
Java client.

python -m benchmarks.auth [--pairs 8] [--seconds 2.5] [--json FILE]

Both brokers have the same configuration: authentication and authorization on, one Normal user with a policy for
the topic. The same load is measured a second time by a Super user. CPU is that of the broker's process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from benchmarks.broker import show
from benchmarks.windows import BENCH_JVM, PAIRS, JavaLoad, alternate, summary
from tests.apache.artifacts import prepare
from tests.apache.harness import LATEST, AdminShell, ApacheBroker, ApacheNamesrv, missing_tools
from tests.apache.ours import OrbitBroker, OrbitNamesrv

TOPIC: Final = "bench-signed"
AUTH: Final = "org.apache.rocketmq.auth"
OPTIONS: Final[dict[str, Any]] = {
    "mappedFileSizeCommitLog": 1024 * 1024 * 1024,
    "authenticationEnabled": True,
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"root","password":"root-secret-1"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret-1"}',
    "authorizationEnabled": True,
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}
USERS: Final = {
    "signed sync send": ("app", "app-secret-1"),
    "signed by a Super user": ("root", "root-secret-1"),
}
GOAL: Final = "goal: signed sync send, broker CPU us/message <= 0.6 of Apache's"


def _prepare(shell: AdminShell, namesrv: Any, broker: Any) -> None:
    address = broker.address
    for command in (
        f"updateTopic -b {address} -t {TOPIC} -r 16 -w 16",
        f"createUser -b {address} -u app -p app-secret-1",
        f"createAcl -b {address} -s User:app -r Topic:{TOPIC} -a Pub -d Allow",
    ):
        done = shell.run(*command.split(), namesrv=namesrv)
        if "success" not in done.output:
            raise RuntimeError(f"{command}: {done.output}")


def run(seconds: float = 2.5, *, pairs: int = PAIRS) -> dict[str, dict[str, float]]:
    """Figures by broker, and the ratios ours / Apache's."""
    missing = missing_tools()
    if missing:
        raise RuntimeError(f"the load is the official Java client, which needs {', '.join(missing)}")
    prepare()
    results: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        enter = stack.enter_context
        our_names, their_names = enter(OrbitNamesrv()), enter(ApacheNamesrv(LATEST))
        ours = enter(OrbitBroker(our_names, **OPTIONS))
        theirs = enter(ApacheBroker(LATEST, their_names, jvm_args=BENCH_JVM, **OPTIONS))
        with AdminShell(LATEST) as shell:
            conf = shell._workdir / "conf"
            conf.mkdir(parents=True, exist_ok=True)
            (conf / "tools.yml").write_text("accessKey: root\nsecretKey: root-secret-1\n")
            _prepare(shell, our_names, ours)
            _prepare(shell, their_names, theirs)
        for name, (key, secret) in USERS.items():
            with ExitStack() as loads:
                sides = []
                for namesrv, broker in ((our_names, ours), (their_names, theirs)):
                    load = JavaLoad("send", namesrv, TOPIC, accessKey=key, secretKey=secret)
                    loads.enter_context(load)
                    load.wait_first()
                    load.pause()
                    sides.append(load.side(broker.cpu_seconds))
                for server, figures in summary(name, alternate(*sides, seconds=seconds, pairs=pairs)).items():
                    results.setdefault(server, {}).update(figures)
    return results


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a window")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--json", help="write the figures there as well")
    given = parser.parse_args(arguments)
    results = run(given.seconds, pairs=given.pairs)
    show(results)
    print(GOAL)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return results


if __name__ == "__main__":
    main()

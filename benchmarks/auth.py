"""Compares sends and consumes under access control with Apache 5.5.0 or with another checkout, in alternating
windows, loaded by the official Java client.

    python -m benchmarks.auth [--baseline PYTHONPATH] [--pairs 8] [--seconds 2.5] [--json FILE]

Both brokers have the same configuration: authentication and authorization on, one Normal user with policies for the
topic and its groups. The sends are also measured with a Super user. CPU is that of the broker's process.

``--baseline`` names the import path of another checkout, which replaces Apache. It needs that checkout's own kernel:

    git worktree add ../before COMMIT && cd ../before/kernel
    maturin build --release --out ../wheel && unzip -d ../site ../wheel/*.whl
    python -m benchmarks.auth --baseline ../before/src:../before/site
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from benchmarks.broker import Consuming, Running, show
from benchmarks.windows import BENCH_JVM, PAIRS, JavaLoad, Pair, alternate, summary
from tests.apache.artifacts import prepare
from tests.apache.harness import LATEST, AdminShell, ApacheBroker, ApacheNamesrv, missing_tools
from tests.apache.ours import COMMAND, OrbitBroker, OrbitNamesrv

TOPIC: Final = "bench-signed"
FILL_S: Final = 15.0
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
APP: Final = {"accessKey": "app", "secretKey": "app-secret-1"}
ROOT: Final = {"accessKey": "root", "secretKey": "root-secret-1"}
SENDERS: Final = {"signed sync send": APP, "signed by a Super user": ROOT}
CONSUME: Final = "signed consume"
GOAL_APACHE: Final = "goal: signed sync send, broker CPU us/message <= 0.6 of Apache's"
GOAL_BASELINE: Final = "goal: broker CPU us/message <= 1.05 of the baseline's"


def _prepare(shell: AdminShell, running: Running) -> None:
    address = running.broker.address
    for command in (
        f"updateTopic -b {address} -t {TOPIC} -r 16 -w 16",
        f"createUser -b {address} -u app -p app-secret-1",
        f"createAcl -b {address} -s User:app -r Topic:{TOPIC} -a Pub,Sub -d Allow",
        f"createAcl -b {address} -s User:app -r Group:* -a Sub -d Allow",
    ):
        done = shell.run(*command.split(), namesrv=running.namesrv)
        if "success" not in done.output:
            raise RuntimeError(f"{command}: {done.output}")


@contextmanager
def _sides(baseline: str) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        enter = stack.enter_context
        ours = enter(OrbitNamesrv())
        running = [Running(ours, enter(OrbitBroker(ours, **OPTIONS)))]
        if baseline:
            names = enter(OrbitNamesrv())
            before = OrbitBroker(names, **OPTIONS)
            path = os.pathsep.join(os.path.abspath(one) for one in baseline.split(os.pathsep))
            before.command = ("env", f"PYTHONPATH={path}", *COMMAND)
            running.append(Running(names, enter(before)))
        else:
            theirs = enter(ApacheNamesrv(LATEST))
            apache = enter(ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, **OPTIONS))
            running.append(Running(theirs, apache))
        with AdminShell(LATEST) as shell:
            conf = shell._workdir / "conf"
            conf.mkdir(parents=True, exist_ok=True)
            (conf / "tools.yml").write_text("accessKey: root\nsecretKey: root-secret-1\n")
            for side in running:
                _prepare(shell, side)
        yield running


def _sends(sides: Sequence[Running], user: dict[str, str], *, seconds: float, pairs: int) -> list[Pair]:
    with ExitStack() as loads:
        measured = []
        for side in sides:
            load = loads.enter_context(JavaLoad("send", side.namesrv, TOPIC, **user))
            load.wait_first()
            load.pause()
            measured.append(load.side(side.broker.cpu_seconds))
        return alternate(measured[0], measured[1], seconds=seconds, pairs=pairs)


def _fill(side: Running) -> int:
    """Returns the number of messages stored."""
    with JavaLoad("send", side.namesrv, TOPIC, batch="32", **APP) as load:
        load.wait_first()
        time.sleep(FILL_S)
        return load.done


def _consumes(sides: Sequence[Running], *, seconds: float, pairs: int) -> list[Pair]:
    with ExitStack() as loads:
        measured = []
        for side in sides:
            load = Consuming(side, TOPIC, _fill(side), **APP)
            loads.callback(load.close)
            measured.append(load.side())
            measured[-1].pause()
        return alternate(measured[0], measured[1], seconds=seconds, pairs=pairs, warm_up_s=2.0)


def run(seconds: float = 2.5, *, pairs: int = PAIRS, baseline: str = "") -> dict[str, dict[str, float]]:
    """Returns the measurements by broker, and the ratios ours / Apache's, or ours / the baseline's."""
    missing = missing_tools()
    if missing:
        raise RuntimeError(f"the load is the official Java client, which needs {', '.join(missing)}")
    prepare()
    results: dict[str, dict[str, float]] = {}
    other = "baseline" if baseline else f"apache-{LATEST}"
    with _sides(baseline) as sides:
        measured = {name: _sends(sides, user, seconds=seconds, pairs=pairs) for name, user in SENDERS.items()}
        measured[CONSUME] = _consumes(sides, seconds=seconds, pairs=pairs)
        for name, found in measured.items():
            for server, figures in summary(name, found, other).items():
                results.setdefault(server, {}).update(figures)
    return results


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--baseline", default="", metavar="PYTHONPATH", help="another checkout, not Apache")
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a window")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--json", help="write the figures there as well")
    given = parser.parse_args(arguments)
    print(f"load average {os.getloadavg()[0]:.1f}")
    results = run(given.seconds, pairs=given.pairs, baseline=given.baseline)
    show(results)
    print(GOAL_BASELINE if given.baseline else GOAL_APACHE)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return results


if __name__ == "__main__":
    main()

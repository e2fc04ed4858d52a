#!/usr/bin/env bash
# Builds .venv with the orbitmq command. Safe to run again at any time.
#
#   bash scripts/setup.sh                      every development tool, and the servers that the tests use
#   bash scripts/setup.sh demo                 only what `make demo` uses
#   bash scripts/setup.sh run                  only what `make run` uses: servers, gRPC, web console
#   PYTHON=python3.12 bash scripts/setup.sh    another interpreter (3.11 or newer)
#   VENV=.venv312 bash scripts/setup.sh        another place
#   SYSTEM_PACKAGES=no bash scripts/setup.sh   never call apt-get, only say what is missing
set -euo pipefail
cd "$(dirname "$0")/.."

VENV="${VENV:-.venv}"
SYSTEM_PACKAGES="${SYSTEM_PACKAGES:-yes}"
WHAT="${1:-everything}"

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

may_install() {
    [[ "$SYSTEM_PACKAGES" == yes && "$(id -u)" == 0 ]] && command -v apt-get >/dev/null
}

UPDATED=no
apt_install() {
    if [[ "$UPDATED" == no ]]; then
        apt-get update -qq || return 1
        UPDATED=yes
    fi
    local package
    for package in "$@"; do
        say "  system package: $package"
    done
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

new_enough() { "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

build_venv() {
    local python version
    python="$(find_python)" || die "Python 3.11 or newer is needed and was not found.
setup: Install it (Debian 12 or Ubuntu 24.04: apt-get install python3 python3-venv) and run this again,
setup: or name one: make setup PYTHON=/path/to/python3.12"
    version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        # Debian and Ubuntu keep these two modules in a package of their own.
        if may_install; then
            say "installing the venv module of Python $version"
            apt_install "python$version-venv" || apt_install python3-venv || true
        fi
        "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
            die "Python $version has no venv module. Install it: apt-get install python$version-venv"
    fi
    say "building $VENV with Python $version"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
}

java_major() {
    command -v java >/dev/null || { echo 0; return; }
    # 'openjdk version "17.0.15" ...'; before Java 9 it was "1.8.0_...", whose first number is below 17 as well.
    java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1 | grep . || echo 0
}

java_ready() { (($(java_major) >= 17)) && command -v javac >/dev/null && command -v mvn >/dev/null; }

check_java() {
    if ! java_ready && may_install; then
        say "installing Java and Maven for the tests with Apache RocketMQ"
        apt_install default-jdk-headless maven || say "apt-get could not install Java and Maven"
    fi
    if java_ready; then
        say "Java $(java_major), javac and Maven found"
    else
        say "Java 17+ with javac, and Maven, were not all found: the tests with Apache RocketMQ will be skipped."
        say "  to have them: apt-get install default-jdk-headless maven"
    fi
}

check_etcd() {
    if ! command -v etcd >/dev/null && may_install; then
        say "installing etcd for the tests of failover"
        # The tests start their own; the service of the package is not wanted, and cannot start in a container.
        without_services apt_install etcd-server || say "apt-get could not install etcd-server"
    fi
    if command -v etcd >/dev/null; then
        say "$(etcd --version 2>/dev/null | head -n 1) found"
    else
        say "etcd was not found: the tests of failover will be skipped."
        say "  to have them: apt-get install etcd-server"
    fi
}

# Runs a command while packages may not start services (Debian's policy-rc.d; 101 is its answer for "no").
without_services() {
    local policy=/usr/sbin/policy-rc.d status=0
    if [[ -e "$policy" ]]; then
        "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    "$@" || status=$?
    rm -f "$policy"
    return "$status"
}

check_go() {
    if command -v go >/dev/null; then
        say "$(go version 2>/dev/null | cut -d ' ' -f 1-3) found"
    else
        say "Go was not found: the tests with the official Go client will be skipped."
        say "  to have them: install Go 1.21 or newer and put it on the PATH"
    fi
}

check_cargo() {
    if ! command -v cargo >/dev/null && may_install; then
        say "installing cargo for the compiled kernel"
        apt_install cargo || say "apt-get could not install cargo"
    fi
    if ! command -v cargo >/dev/null; then
        say "cargo was not found: the plain kernel is used (to have the fast one: apt-get install cargo)"
    elif ! VENV="$VENV" bash scripts/build_kernel.sh; then
        say "the compiled kernel could not be built: the plain kernel is used"
    fi
}

check_chromium() {
    if ! command -v chromium >/dev/null && may_install; then
        say "installing Chromium for the tests of the console"
        apt_install chromium || say "apt-get could not install chromium"
    fi
    if command -v chromium >/dev/null; then
        say "$(chromium --version 2>/dev/null | head -n 1) found"
    else
        say "Chromium was not found: the tests of the console in a browser will be skipped."
        say "  to have them: apt-get install chromium"
    fi
}

# The demo's Spark part needs a Java to run, not to compile.
check_java_of_demo() {
    if (($(java_major) < 17)) && may_install; then
        say "installing Java for the Spark part of the demo"
        apt_install default-jre-headless || say "apt-get could not install Java"
    fi
    if (($(java_major) < 17)); then
        say "Java 17+ was not found: the Spark part of the demo will be skipped."
        say "  to have it: apt-get install default-jre-headless"
        return 1
    fi
}

# Errors only: the pip of Debian 12 warns about how it installs pyspark, which no user can change.
pip_install() { "$VENV/bin/python" -m pip install -qq "$@"; }

if ! new_enough "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    build_venv
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1
if [[ "$WHAT" != everything ]]; then
    locked=requirements/server.txt
    if [[ "$WHAT" == run ]]; then
        locked=requirements/run.txt
    elif check_java_of_demo; then
        locked=requirements/spark.txt
    fi
    say "installing the pinned packages of $locked"
    pip_install --require-hashes -r "$locked"
    pip_install --no-deps --no-build-isolation --no-index -e .
    say "done: $VENV/bin/orbitmq (make setup adds the development tools)"
    exit
fi
say "installing the pinned packages"
pip_install --require-hashes -r requirements/dev.txt
pip_install --no-deps --no-build-isolation --no-index -e .
check_cargo
check_java
check_etcd
check_chromium
check_go
say "done: $VENV/bin/orbitmq, $VENV/bin/pytest, $VENV/bin/mypy, $VENV/bin/ruff"

#!/usr/bin/env bash
# Measures what a newcomer waits for: from `git clone` to the first consumed message, by the README alone, with an empty
# package cache. Usage: [WAY=core] scripts/first_message.sh [repository, default: the one this script is in]
# WAY=setup (default) is 'make setup' with every development tool and Spark; WAY=core is "pip install '.[server]'" into a new .venv.
# Everything happens in a directory of its own that goes at the end, on free ports, so that nothing running is disturbed.
set -euo pipefail

source_repository="${1:-$(cd "$(dirname "$0")/.." && pwd)}"
work="$(mktemp -d)"
server=""
cleanup() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT

export PIP_CACHE_DIR="$work/empty-cache"
begin="$(date +%s.%N)"
last="$begin"
lap() {
    local now
    now="$(date +%s.%N)"
    printf '%-34s %7.1f s\n' "$1" "$(awk -v a="$last" -v b="$now" 'BEGIN { print b - a }')"
    last="$now"
}

git clone --quiet "$source_repository" "$work/orbitmq"
cd "$work/orbitmq"
lap "git clone"

install() {
    if [ "${WAY:-setup}" = core ]; then
        python3 -m venv .venv && .venv/bin/pip install '.[server]'
    else
        make setup
    fi
}
install >"$work/setup.log" 2>&1 || { tail -20 "$work/setup.log"; exit 1; }
lap "installed (${WAY:-setup})"

# What 'make run' does, on other ports.
.venv/bin/orbitmq up --data ./data --port "${PORT:-0}" --broker-port "${BROKER_PORT:-0}" >"$work/up.log" 2>&1 &
server=$!
for _ in $(seq 300); do
    grep -q "is ready" "$work/up.log" && break
    kill -0 "$server" || { cat "$work/up.log"; exit 1; }
    sleep 0.1
done
address="$(sed -n 's/^  name server  *//p' "$work/up.log")"
lap "servers ready"

# The two programs of the README, as they stand there.
.venv/bin/python - "$address" <<'PYTHON'
import re
import sys
from pathlib import Path

blocks = re.findall(r"^```python\n(.*?)^```", Path("README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
for name, block in zip(("first", "produce", "consume"), blocks, strict=False):
    Path(f"{name}.py").write_text(block.replace("127.0.0.1:9876", sys.argv[1]))
PYTHON
.venv/bin/python produce.py | sed -n 1p
lap "produced"
.venv/bin/python consume.py | sed -n 1p
lap "consumed"
last="$begin"
lap "from clone to consumed"

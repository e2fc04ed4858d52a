#!/usr/bin/env bash
# Runs `make demo`, then `pip install` to the first message, on a machine without Java, Go, Rust and etcd: a minimal
# Debian made with debootstrap, entered with its own mounts and processes. Prints the times. Needs root, debootstrap and
# a network with Debian's and Python's packages; certificates and apt's settings are those of this machine.
#
#   scripts/clean_machine.sh user      as an unprivileged user: the Spark part of the demo is skipped
#   scripts/clean_machine.sh root      as root: the demo installs Java first
#   SUITE=trixie scripts/clean_machine.sh user    another Debian (default: bookworm)
set -euo pipefail
who="${1:-user}"
source_repository="$(cd "$(dirname "$0")/.." && pwd)"
work="$(mktemp -d)"
machine="$work/machine"
trap 'rm -rf --one-file-system "$work"' EXIT

debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,make,git \
    "${SUITE:-bookworm}" "$machine" >"$work/debootstrap.log" || { tail -5 "$work/debootstrap.log"; exit 1; }
cp /etc/resolv.conf /etc/hosts "$machine/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$machine/etc/ssl/certs/"
cp /etc/apt/apt.conf.d/* "$machine/etc/apt/apt.conf.d/"
chroot "$machine" useradd --create-home --home-dir /srv/user --uid 1000 user
home=/srv/user
[ "$who" = root ] && home=/root
git clone --quiet "$source_repository" "$machine$home/orbitmq"
chroot "$machine" chown -R "$who" "$home/orbitmq"

cat >"$machine/visit.sh" <<'INSIDE'
set -euo pipefail
for tool in java go cargo etcd gcc; do
    if command -v "$tool" >/dev/null; then echo "$tool is here: not a clean machine"; exit 1; fi
done
lap() { local now; now="$(date +%s.%N)"; awk -v a="$last" -v b="$now" -v w="$1" 'BEGIN { printf "%-44s %6.1f s\n", w, b - a }'; last="$now"; }
cd "$HOME/orbitmq"
last="$(date +%s.%N)"
make .venv/.installed-demo
lap "set-up of the demo"
make demo
lap "the demo"
first_message() {
    rm -rf "$HOME/try" && mkdir "$HOME/try" && cd "$HOME/try"
    local begin; begin="$(date +%s.%N)"; last="$begin"
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check "$HOME/orbitmq[server,console,proxy]"
    lap "pip install, $1 cache"
    .venv/bin/orbitmq up --data ./data --port 19876 --broker-port 0 >up.log 2>&1 &
    local server=$!
    for _ in $(seq 600); do grep -q "is ready" up.log && break; sleep 0.1; done
    .venv/bin/python - <<'PYTHON'
import re
from pathlib import Path

readme = (Path.home() / "orbitmq" / "README.md").read_text("utf-8")
program = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[0]
exec(program.replace("127.0.0.1:9876", "127.0.0.1:19876"))
PYTHON
    last="$begin"
    lap "pip install to first message, $1 cache"
    kill "$server" && wait "$server"
}
first_message cold
first_message warm
INSIDE

unshare --mount --pid --fork bash -c '
    mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount -t tmpfs tmpfs "$1/dev/shm"
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$3" LANG=C.UTF-8 \
        PIP_CERT=/etc/ssl/certs/ca-certificates.crt chroot --userspec="$2" "$1" bash /visit.sh' \
    visit "$machine" "$who" "$home"

#!/usr/bin/env bash
# Builds the compiled kernel (crate kernel/) and puts it into a virtual environment. Needs cargo and maturin.
#
#   VENV=.venv bash scripts/build_kernel.sh
set -euo pipefail
cd "$(dirname "$0")/.."
VENV="${VENV:-.venv}"
python="$PWD/$VENV/bin/python"

rm -rf build/kernel
(cd kernel && "$python" -m maturin build --release --quiet --interpreter "$python" --out ../build/kernel)
# A wheel of one shared library: unpacking it needs neither pip nor an index.
"$python" - build/kernel/*.whl <<'PYTHON'
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

target = Path(sysconfig.get_paths()["platlib"])
for old in target.glob("orbitmq_kernel*"):
    shutil.rmtree(old) if old.is_dir() else old.unlink()
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(target)
PYTHON
"$python" -c 'import orbitmq_kernel; print("kernel: compiled, interface", orbitmq_kernel.API)'

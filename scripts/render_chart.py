"""Renders the Helm chart with the values of the tests into the files that the tests read.

Usage: python scripts/render_chart.py [--check]

Needs helm 3; `go install helm.sh/helm/v3/cmd/helm@v3.19.0` builds it. The results, tests/integration/chart/*.yaml,
are committed, so that the tests can validate them without helm. The tests fail when the chart has changed since.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "packaging/helm/orbitmq"
RENDERED: Final = ROOT / "tests/integration/chart"
KUBERNETES_VERSION: Final = "1.30"


def digest(values: Path) -> str:
    """Returns a digest of the chart and the values, in the form of the first line of a rendered file."""
    total = hashlib.sha256()
    for path in (*sorted(path for path in CHART.rglob("*") if path.is_file()), values):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return f"# chart {total.hexdigest()}"


def rendered(helm: str, values: Path) -> str:
    """Returns the objects of the chart with these values. Raises ``CalledProcessError``."""
    done = subprocess.run(
        [
            *(helm, "template", "mq", str(CHART), "--namespace", "mq"),
            *("--kube-version", KUBERNETES_VERSION, "--values", str(values)),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return f"{digest(values)}\n{done.stdout}"


def main() -> int:
    helm = os.environ.get("HELM", "helm")
    subprocess.run([helm, "lint", "--strict", str(CHART)], timeout=120, check=True)
    stale = 0
    for values in sorted(RENDERED.glob("*.values.yaml")):
        text = rendered(helm, values)
        target = RENDERED / values.name.replace(".values", "")
        if target.exists() and target.read_text() == text:
            continue
        stale += 1
        print(f"{target.relative_to(ROOT)} has changed")
        if "--check" not in sys.argv:
            target.write_text(text)
    return stale if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())

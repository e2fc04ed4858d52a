from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.apache.kernels import load

from orbitmq.kernel import chosen


def _name(wanted: str, code: str = "from orbitmq.kernel import NAME; print(NAME)") -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ORBITMQ_KERNEL": wanted},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return result.returncode, result.stdout.strip() + result.stderr


def test_forced_plain_is_plain() -> None:
    assert _name("plain") == (0, "plain")


def test_forced_fast_is_fast() -> None:
    load("fast")
    assert _name("fast") == (0, "fast")


def test_forced_fast_without_the_module_says_what_to_do() -> None:
    code, text = _name("fast", "import sys; sys.modules['orbitmq_kernel'] = None; import orbitmq.kernel")
    assert code != 0
    assert "ORBITMQ_KERNEL=fast, but the compiled kernel cannot be imported" in text


def test_without_the_module_the_plain_one_is_taken() -> None:
    blocked = "import sys; sys.modules['orbitmq_kernel'] = None; from orbitmq.kernel import NAME; print(NAME)"
    assert _name("", blocked) == (0, "plain")


def test_unknown_name_is_refused() -> None:
    code, text = _name("rust")
    assert code != 0
    assert "the accepted values are plain and fast" in text


def test_compiled_kernel_of_another_interface_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = type(sys)("orbitmq_kernel")
    fast.__dict__["API"] = chosen.API + 1
    monkeypatch.setitem(sys.modules, "orbitmq_kernel", fast)
    assert chosen._load("") is None
    with pytest.raises(ImportError, match=f"interface {chosen.API + 1}, {chosen.API} is needed"):
        chosen._load("fast")


@pytest.mark.parametrize("missing", sorted(chosen.PLAIN))
def test_compiled_kernel_that_lacks_a_function_is_not_taken(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = type(sys)("orbitmq_kernel")
    fast.__dict__.update(dict.fromkeys(chosen.PLAIN, chosen._load), API=chosen.API)
    monkeypatch.setitem(sys.modules, "orbitmq_kernel", fast)
    assert chosen._load("fast") is fast
    del fast.__dict__[missing]
    assert chosen._load("") is None
    with pytest.raises(ImportError, match=f"has no {missing}; build it again"):
        chosen._load("fast")


def test_compiled_kernel_has_every_function_we_name() -> None:
    assert chosen._mismatch(load("fast")) == ""

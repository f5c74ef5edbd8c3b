import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from svip_adapters import _fingerprint
from svip_adapters._fingerprint import check, fingerprint

from svip_policy.errors import UnknownUpstreamError, UnknownUpstreamWarning

SOURCE = '''
class A:
    """Docs."""
    def f(self, x: int = 1) -> str:
        """More docs."""
        # a comment
        def inner(): "docs"; return f"{x!r:>{3}}"
        return inner()  # another
def g(): pass
'''
SAME = '''
class A:
    def f(self,
          x: int=1) -> str:
        def inner():
            return f'{x!r:>{3}}'
        return (inner())
'''


def test_layout_comments_and_docstrings_do_not_count():
    assert fingerprint(SOURCE, "A.f") == fingerprint(SAME, "A.f")


@pytest.mark.parametrize(("old", "new"), [
    ("x: int = 1", "x: int = 2"), ("return inner()", "return inner"), ("self, x", "this, x"),
    ("!r", "!s"), ("-> str", "-> int"),
])
def test_any_change_of_meaning_counts(old, new):
    assert old in SOURCE
    assert fingerprint(SOURCE, "A.f") != fingerprint(SOURCE.replace(old, new), "A.f")


def test_the_value_is_the_same_on_every_python():
    """Pinned: computed alike under Python 3.9 to 3.13."""
    value = fingerprint("def g(a, *, b=None): return [a, b]", "g")
    assert value == "e05a520c1e243719b6a1fc5286ee15b0152e2baac0f8f3950ad28dfeba0ea06b"


def test_an_absent_function():
    with pytest.raises(LookupError, match=r"A\.h"):
        fingerprint(SOURCE, "A.h")


@pytest.fixture
def unknown(monkeypatch):
    key = ("svip_adapters._handle", "Handle.detach")
    monkeypatch.setitem(_fingerprint.FINGERPRINTS, "sample", {key: {"0" * 64: "1.0 to 1.2"}})


def test_unknown_upstream_names_everything_needed(unknown):
    with pytest.raises(UnknownUpstreamError) as caught:
        check("sample")
    for part in ("svip_adapters._handle.Handle.detach", "_handle.py", "1.0 to 1.2", "0" * 12,
                 "on_unknown='warn'"):
        assert part in str(caught.value)


def test_unknown_upstream_can_be_a_warning(unknown):
    with pytest.warns(UnknownUpstreamWarning, match=r"Handle\.detach"):
        check("sample", "warn")


def test_other_answers_to_unknown_upstreams_are_refused():
    with pytest.raises(ValueError, match="give 'raise' or 'warn'"):
        check("transformers", "ignore")


def test_installed_transformers_is_known():
    check("transformers")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sync.py reads TOML with tomllib")
def test_generated_table_is_not_stale():
    path = Path(__file__).parents[2] / "third_party" / "sync.py"
    spec = importlib.util.spec_from_file_location("sync", path)
    sync = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sync)
    assert sync.generated(sync.read_pins()) == sync.GENERATED.read_text()
    ast.parse(sync.GENERATED.read_text())

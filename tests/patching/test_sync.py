"""third_party/sync.py: fingerprints of wheels, of a checkout's history, and of a folder."""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="sync.py reads TOML by tomllib")
OLD, NEW = "class A:\n    def f(self): return 1\n", "class A:\n    def f(self): return 2\n"


@pytest.fixture(scope="module")
def sync():
    path = Path(__file__).parents[2] / "third_party" / "sync.py"
    spec = importlib.util.spec_from_file_location("sync", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry():
    return {"files": {"head": ["head.py", "head1.py"]},
            "functions": [{"module": "head", "qualname": "A.f"}]}


def git(folder, *arguments):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True,
                          capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """Three commits: the first version, one that touches another file, the second version."""
    git(tmp_path, "init", "-q")
    model = tmp_path / "src"
    model.mkdir()
    for name, text in (("head.py", OLD), ("other.py", "x = 1\n"), ("head1.py", NEW)):
        (model / name).write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", name, "--date", "2024-05-06T00:00:00")
    return tmp_path


def test_history_of_a_checkout(sync, checkout):
    pins = {"up": entry()}
    sync.add_checkout(pins, "up", checkout, "src/", "owner/name", "HEAD")
    known = pins["up"]["functions"][0]["fingerprints"]
    commits = git(checkout, "log", "--reverse", "--format=%h").splitlines()
    found_in = {frozenset(label.split()[2] for label in found) for found in known.values()}
    # Both files at the last commit, and no commit that touched neither.
    assert found_in == {frozenset((commits[0], commits[2])), frozenset((commits[2],))}
    assert all(label.startswith("owner/name 20") for found in known.values() for label in found)


@pytest.mark.parametrize("folder, commits", [("src/", "nowhere"), ("elsewhere/", "HEAD")])
def test_a_wrong_range_or_folder_is_not_silent(sync, checkout, folder, commits):
    with pytest.raises(SystemExit, match="no commit"):
        sync.add_checkout({"up": entry()}, "up", checkout, folder, "owner/name", commits)


def test_a_folder_is_known_or_told_what_is_not(sync, checkout):
    pins = {"up": entry()}
    sync.add_checkout(pins, "up", checkout, "src/", "owner/name", "HEAD")
    assert sync.unknown(pins, "up", checkout / "src") == []
    (checkout / "src" / "head.py").write_text(OLD.replace("1", "3"))
    (found,) = sync.unknown(pins, "up", checkout / "src")
    assert "A.f has the unknown fingerprint" in found
    assert sync.unknown(pins, "up", checkout) == ["A.f: no file for it"]


def test_a_wheel_of_another_name_and_folder(sync, tmp_path):
    wheel = tmp_path / "my_llm-1.2.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("src/head.py", OLD)
    pins = {"up": entry()}
    sync.add_wheel(pins, "up", wheel, "src/")
    (labels,) = pins["up"]["functions"][0]["fingerprints"].values()
    assert labels == ["my-llm 1.2.1"]


def test_spans_keep_sources_apart(sync):
    assert sync.spans(["4.53.0", "4.54.0", "5.1.0"]) == "4.53.0 to 5.1.0"
    assert sync.spans(["my-llm 1.2.1", "a/b 2024-01-02 abc", "a/b 2025-01-02 def"]) == (
        "my-llm 1.2.1, a/b 2024-01-02 abc to 2025-01-02 def")

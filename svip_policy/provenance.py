"""Under which conditions something was measured: the first line of every trace and result."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

REQUIRED = ("versions", "device", "dtype", "threads", "models", "arms", "seed", "commit")
# scikit-learn: where it is installed, transformers adapts its own threshold.
_PACKAGES = ("torch", "transformers", "numpy", "scikit-learn", "eagle-llm", "vllm")


def collect(**given: Any) -> dict[str, Any]:
    """Versions, machine, threads, seed and commit, and what is ``given``.

    Args:
        given: what only the caller knows, ``models``, ``dtype`` and ``arms`` above all; it
            goes before what is found here, and its ``versions`` are added.
    """
    torch = sys.modules.get("torch")
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    found = {
        "device": f"CPU, {machine}",
        "threads": torch.get_num_threads() if torch else os.cpu_count(),
        "seed": torch.initial_seed() if torch else None,
        "commit": commit(),
    }
    return {"versions": versions() | given.pop("versions", {}), **found, **given}


def versions() -> dict[str, str]:
    """Of this package, Python, and those of the frameworks that are installed."""
    from . import __version__

    found = {"svip-policy": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(folder: Path = Path(__file__).parents[1]) -> str:
    """The git commit of a checkout, in short; of this package's own by default.

    Not of another repository that the folder happens to lie in, as site-packages may.
    """
    try:
        top = _git(folder, "rev-parse", "--show-toplevel")
        if Path(top).resolve() == folder.resolve():
            return _git(folder, "describe", "--always", "--dirty")
    except (OSError, subprocess.CalledProcessError):
        pass
    return "unknown, not a git checkout"


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder,
                          check=True).stdout.strip()


def missing(header: Mapping[str, Any]) -> list[str]:
    """Which of the REQUIRED conditions ``header`` does not tell."""
    return [name for name in REQUIRED if header.get(name) in (None, "", {}, [])]

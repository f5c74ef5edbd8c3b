"""Keep the fingerprints of upstream functions.

    python third_party/sync.py add transformers transformers-5.24.0-py3-none-any.whl ...
    python third_party/sync.py add-checkout eagle-dynamic ~/EAGLE --folder eagle/model \\
        --name SafeAILab/EAGLE --commits bfeb532^..HEAD
    python third_party/sync.py check eagle-dynamic ~/EAGLE/eagle/model
    python third_party/sync.py generate

``add`` fingerprints each listed function in the given wheels, ``add-checkout`` in the commits of
a git checkout that touch them, and notes in ``upstreams.toml`` where each occurs. ``check`` tells
whether the functions of a folder are known. ``generate`` writes ``svip_adapters/_upstreams.py``,
which is what the adapters read.

Where an upstream's module has no fixed name, ``upstreams.toml`` names the part it plays and,
under ``files``, the files that play it.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w
import tomllib
from packaging.version import Version

HERE = Path(__file__).parent
PINS = HERE / "upstreams.toml"
ADAPTERS = HERE.parent / "adapters"
GENERATED = ADAPTERS / "svip_adapters" / "_upstreams.py"

HEADER = '''"""Known fingerprints of upstream functions, written by sync.py: do not edit."""

FINGERPRINTS: dict[str, dict[tuple[str, str], dict[str, str]]] = '''


def read_pins() -> dict[str, Any]:
    """The content of upstreams.toml."""
    return tomllib.loads(PINS.read_text())


def found_in(entry: dict[str, Any], read: Callable[[str], str | None]) -> Iterator[tuple[Any, str]]:
    """Each listed function with a fingerprint that it has.

    Args:
        entry: of one distribution in upstreams.toml.
        read: gives the text of a file named there, None if there is no such file.
    """
    sys.path.insert(0, str(ADAPTERS))
    fingerprints = importlib.import_module("svip_adapters._fingerprint")
    for function in entry["functions"]:
        module = function["module"]
        files = entry.get("files", {}).get(module, [module.replace(".", "/") + ".py"])
        for source in filter(None, map(read, files)):
            try:
                yield function, fingerprints.fingerprint(source, function["qualname"])
            except LookupError:
                yield function, fingerprints.ABSENT  # in this version; the adapter does without


def note(function: dict[str, Any], sha: str, label: str) -> None:
    """Note that ``function`` has the fingerprint ``sha`` in the version ``label``."""
    known = function.setdefault("fingerprints", {})
    known[sha] = sorted({*known.get(sha, []), label}, key=in_order)


def in_order(label: str) -> tuple[Any, ...]:
    """Sorts versions as versions and dated commits by date."""
    dated = re.search(r"\d{4}-\d\d-\d\d", label)
    return (1, label[: dated.start()], label) if dated else (0, Version(label.split()[-1]))


def add_wheel(pins: dict[str, Any], distribution: str, wheel: Path, folder: str) -> None:
    """Note the fingerprints of one wheel's functions in ``pins``."""
    name, version = wheel.name.split("-")[:2]
    label = version if name == distribution else f"{name.replace('_', '-')} {version}"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

        def read(file: str) -> str | None:
            return archive.read(folder + file).decode() if folder + file in names else None

        for function, sha in found_in(pins[distribution], read):
            note(function, sha, label)


def add_checkout(pins: dict[str, Any], distribution: str, checkout: Path, folder: str,
                 name: str, commits: str) -> None:
    """Note the fingerprints in each commit of a range that touches the listed files."""
    entry = pins[distribution]
    files = [folder + file for files in entry["files"].values() for file in files]
    log = git(checkout, "log", "--format=%h %cs", commits, "--", *files) or ""
    # The last commit too, which may have touched none of them: it is the one people have.
    log += git(checkout, "log", "-1", "--format=%h %cs", commits.split("..")[-1]) or ""
    noted = 0
    for commit, date in map(str.split, log.splitlines()):
        for function, sha in found_in(entry, lambda f, c=commit: git(  # type: ignore[misc]
                checkout, "show", f"{c}:{folder}{f}")):
            note(function, sha, f"{name} {date} {commit}")
            noted += 1
    if not noted:
        raise SystemExit(f"no commit of {commits} in {checkout} has {' or '.join(files)}")


def git(checkout: Path, *arguments: str) -> str | None:
    """Output of a git command; None if it fails."""
    done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True,
                          check=False)
    return done.stdout if done.returncode == 0 else None


def unknown(pins: dict[str, Any], distribution: str, folder: Path) -> list[str]:
    """The functions in ``folder`` that no pin knows, and those not found at all."""
    def read(file: str) -> str | None:
        path = folder / file
        return path.read_text(encoding="utf-8") if path.exists() else None

    found = list(found_in(pins[distribution], read))
    strange = [f"{function['qualname']} has the unknown fingerprint {sha[:12]}"
               for function, sha in found if sha not in function.get("fingerprints", {})]
    seen = {function["qualname"] for function, _ in found}
    return strange + [f"{function['qualname']}: no file for it"
                      for function in pins[distribution]["functions"]
                      if function["qualname"] not in seen]


def spans(labels: list[str]) -> str:
    """``4.53.0 to 5.1.0`` for a sorted list of versions of one source; each source by itself.

    The span is that of the first and the last; between commits of them others may lie.
    """
    by_source: dict[str, list[str]] = {}
    for label in labels:
        dated = re.search(r"\d{4}-\d\d-\d\d", label)
        source = label[: dated.start()] if dated else "".join(label.split()[:-1])
        by_source.setdefault(source, []).append(label.removeprefix(source).strip())
    return ", ".join(
        f"{source.strip()} {versions[0]}".strip()
        + (f" to {versions[-1]}" if len(versions) > 1 else "")
        for source, versions in by_source.items())


def generated(pins: dict[str, Any]) -> str:
    """The text of _upstreams.py."""
    lines = ["{"]
    for distribution, entry in pins.items():
        lines.append(f'    "{distribution}": {{')
        for function in entry["functions"]:
            lines.append(f'        ("{function["module"]}", "{function["qualname"]}"): {{')
            lines += [f'            "{sha}": "{spans(versions)}",'
                      for sha, versions in function.get("fingerprints", {}).items()]
            lines.append("        },")
        lines.append("    },")
    return HEADER + "\n".join([*lines, "}"]) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="note the fingerprints of wheels")
    adding.add_argument("distribution")
    adding.add_argument("wheels", type=Path, nargs="+")
    adding.add_argument("--folder", default="", help="where the files are, in the wheel")
    noting = commands.add_parser("add-checkout", help="note those of a checkout's commits")
    noting.add_argument("distribution")
    noting.add_argument("checkout", type=Path)
    noting.add_argument("--folder", required=True, help="where the files are, in the checkout")
    noting.add_argument("--name", required=True, help="such as SafeAILab/EAGLE")
    noting.add_argument("--commits", default="HEAD", help="such as a1b2c3d^..HEAD")
    checking = commands.add_parser("check", help="are the functions of a folder known?")
    checking.add_argument("distribution")
    checking.add_argument("folder", type=Path)
    commands.add_parser("generate", help="write _upstreams.py")
    args = parser.parse_args()
    pins = read_pins()
    if args.command == "check":
        strange = unknown(pins, args.distribution, args.folder)
        print("\n".join(strange) or "all functions are known")
        sys.exit(bool(strange))
    folder = getattr(args, "folder", "")
    folder = folder.rstrip("/") + "/" if folder else ""
    if args.command == "add":
        for wheel in args.wheels:
            add_wheel(pins, args.distribution, wheel, folder)
    if args.command == "add-checkout":
        add_checkout(pins, args.distribution, args.checkout, folder, args.name, args.commits)
    if args.command != "generate":
        PINS.write_text(tomli_w.dumps(pins))
    GENERATED.write_text(generated(pins))


if __name__ == "__main__":
    main()

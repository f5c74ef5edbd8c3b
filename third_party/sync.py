"""Keep the fingerprints of upstream functions.

    python third_party/sync.py add transformers transformers-5.24.0-py3-none-any.whl ...
    python third_party/sync.py generate

``add`` fingerprints each listed function in the given wheels and notes under which versions
it occurs in ``upstreams.toml``; ``generate`` writes ``svip_adapters/_upstreams.py`` from it,
which is what the adapters read.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import zipfile
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


def add(pins: dict[str, Any], distribution: str, wheel: Path) -> None:
    """Note the fingerprints of one wheel's functions in ``pins``."""
    sys.path.insert(0, str(ADAPTERS))
    fingerprints = importlib.import_module("svip_adapters._fingerprint")
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as archive:
        for function in pins[distribution]["functions"]:
            source = archive.read(function["module"].replace(".", "/") + ".py").decode()
            try:
                found = fingerprints.fingerprint(source, function["qualname"])
            except LookupError:
                found = fingerprints.ABSENT  # in this version; the adapter does without
            known = function.setdefault("fingerprints", {})
            known[found] = sorted({*known.get(found, []), version}, key=Version)


def spans(versions: list[str]) -> str:
    """``4.53.0 to 5.1.0`` for a sorted list of versions."""
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


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
    commands.add_parser("generate", help="write _upstreams.py")
    args = parser.parse_args()
    pins = read_pins()
    if args.command == "add":
        for wheel in args.wheels:
            add(pins, args.distribution, wheel)
        PINS.write_text(tomli_w.dumps(pins))
    GENERATED.write_text(generated(pins))


if __name__ == "__main__":
    main()

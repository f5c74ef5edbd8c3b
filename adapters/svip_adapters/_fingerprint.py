"""Fingerprints of the upstream functions that an adapter relies on.

A fingerprint is the SHA-256 of a function's syntax tree in a canonical form without
docstrings, comments and positions, the same under Python 3.9 to 3.13 (``ast.dump`` and
``ast.unparse`` are not).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import warnings
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from svip_policy.errors import UnknownUpstreamError, UnknownUpstreamWarning

from ._upstreams import FINGERPRINTS

OnUnknown = Literal["raise", "warn"]

# Fields that differ between Python versions or carry no meaning.
_SKIPPED = {"type_comment", "kind", "type_params", "ctx"}
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def fingerprint(source: str, qualname: str) -> str:
    """Fingerprint of the function ``qualname``, e.g. ``Class.method``, in module source.

    Raises:
        LookupError: the source defines no such function.
    """
    return hashlib.sha256(_canonical(_without_docstrings(_find(source, qualname))).encode()) \
        .hexdigest()


def _find(source: str, qualname: str) -> ast.AST:
    node: Any = ast.parse(source)
    for part in qualname.split("."):
        found = [n for n in node.body if isinstance(n, _DEFINITIONS) and n.name == part]
        if not found:
            raise LookupError(f"no {qualname}")
        node = found[-1]  # the last definition wins, as at run time
    return node  # type: ignore[no-any-return]


def _without_docstrings(node: ast.AST) -> ast.AST:
    for inner in ast.walk(node):
        if isinstance(inner, _DEFINITIONS) and ast.get_docstring(inner, clean=False) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    return node


def _canonical(node: Any) -> str:
    if isinstance(node, ast.JoinedStr):
        return f"(JoinedStr values=[{','.join(_joined(node.values))}])"
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in sorted(node._fields))
        parts = [f"{name}={_canonical(value)}" for name, value in fields
                 if name not in _SKIPPED and value is not None and value != []]
        return f"({' '.join([type(node).__name__, *parts])})"
    if isinstance(node, list):
        return f"[{','.join(map(_canonical, node))}]"
    return repr(node)


def _joined(values: list[ast.expr]) -> list[str]:
    """The parts of an f-string; where its text is split differs between versions."""
    parts: list[str] = []
    text = ""
    for value in values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
            continue
        parts += [repr(text)] * bool(text) + [_canonical(value)]
        text = ""
    return parts + [repr(text)] * bool(text)


ABSENT = "absent"
_OR_WARN = (", or, if you have checked that the function still does the same, attach with "
            "on_unknown='warn'")


@functools.cache
def installed(module: str, qualname: str) -> tuple[str, str]:
    """File of an importable module, and the fingerprint of its function or ABSENT."""
    file = getattr(importlib.import_module(module), "__file__", None)
    if file is None:
        return "no file", ABSENT
    try:
        return file, fingerprint(Path(file).read_text(encoding="utf-8"), qualname)
    except LookupError:
        return file, ABSENT


def check(
    distribution: str, on_unknown: OnUnknown = "raise", modules: Mapping[str, str] | None = None,
    spliced: Collection[str] = (),
) -> None:
    """Compare the installed functions of ``distribution`` with the known ones.

    Args:
        distribution: as in third_party/upstreams.toml, e.g. ``transformers``.
        on_unknown: ``warn`` goes on with a warning; only for functions that are wrapped.
        modules: where upstreams.toml names modules by a part that they play, their import names.
        spliced: functions that are not wrapped but edited, for which ``warn`` does not hold.

    Raises:
        UnknownUpstreamError: a function is absent or of an unknown version.
        ValueError: ``on_unknown`` is neither of its values.
    """
    if on_unknown not in ("raise", "warn"):
        raise ValueError(f"on_unknown is {on_unknown!r}; give 'raise' or 'warn'")
    for (part, qualname), known in FINGERPRINTS[distribution].items():
        message = _complaint((modules or {}).get(part, part), qualname, known)
        if message and qualname in spliced:
            raise UnknownUpstreamError(message)
        if message:
            message += _OR_WARN
        if message and on_unknown == "raise":
            raise UnknownUpstreamError(message)
        if message:
            warnings.warn(message, UnknownUpstreamWarning, stacklevel=3)


def _complaint(module: str, qualname: str, known: dict[str, str]) -> str:
    """Why the installed function is not to be relied on; empty if it is."""
    file, found = installed(module, qualname)
    if found in known:
        return ""
    versions = ", ".join(f"{sha[:12]} ({spans})" for sha, spans in known.items())
    return (
        f"{module}.{qualname} in {file} ({_version(module)}) has the fingerprint {found[:12]}; "
        f"known are {versions}. Install one of these versions"
    )


def _version(module: str) -> str:
    package = module.partition(".")[0]
    names = metadata.packages_distributions().get(package, [])
    return ", ".join(f"{name} {metadata.version(name)}" for name in names) or \
        f"{package}, not installed as a distribution"


def installed_version(distribution: str) -> str:
    """The version of an installed distribution, ``none`` if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        # vLLM's build for CPUs is a distribution of another name.
        names = metadata.packages_distributions().get(distribution, [])
        return metadata.version(names[0]) if names else "none"


def survey() -> list[str]:
    """A sentence for each upstream: whether the functions that its adapter relies on are known."""
    return [_surveyed(distribution, functions) for distribution, functions in FINGERPRINTS.items()]


def _surveyed(distribution: str, functions: Mapping[tuple[str, str], dict[str, str]]) -> str:
    version, names = installed_version(distribution), [name for _, name in functions]
    if version == "none":
        return (f"{distribution}: looked at where a model is attached; relies on "
                f"{', '.join(sorted(set(names)))}")
    unknown = [f"{module}.{name}" for (module, name), known in functions.items()
               if _complaint(module, name, known)]
    if unknown:
        return f"{distribution} {version}: not known are {', '.join(unknown)}"
    return f"{distribution} {version}: all {len(names)} functions that are relied on are known"

"""Put a question into a loop of the user's own installed source, where there is no hook.

Nothing of an upstream is stored here: the function's source is read from its module, parsed,
edited by the caller, and compiled with the module's own globals.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from svip_policy.errors import UnknownUpstreamError

_Found = TypeVar("_Found")


def splice(
    function: Callable[..., Any], edit: Callable[[ast.FunctionDef], None], names: dict[str, Any]
) -> Callable[..., Any]:
    """A copy of ``function`` whose syntax tree was changed by ``edit``.

    Args:
        function: as its class or module holds it; decorators are applied anew.
        edit: changes the definition in place.
        names: what the edited code refers to besides the module's globals.
    """
    inner = inspect.unwrap(function)
    file = inspect.getsourcefile(inner)
    definition = ast.parse(textwrap.dedent(inspect.getsource(inner))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    edit(definition)
    # The names come in as a closure, so that the module's globals stay its own.
    maker = ast.parse(f"def make({', '.join(names)}):\n    pass\n    return {definition.name}")
    maker.body[0].body[0] = definition  # type: ignore[attr-defined]
    source = ast.unparse(ast.fix_missing_locations(maker))
    # Held under a name of its own, so that tracebacks and debuggers show the edited lines.
    name = f"<{file}: {inner.__qualname__} with a policy>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    found: dict[str, Any] = {}
    exec(compile(source, name, "exec", dont_inherit=True), inner.__globals__, found)
    return found["make"](**names)  # type: ignore[no-any-return]


def loop_over(definition: ast.FunctionDef, iterable: str) -> ast.For:
    """The one ``for`` loop of ``definition`` over ``iterable``, as :func:`ast.unparse` writes it.

    Raises:
        UnknownUpstreamError: there is none, or several.
    """
    loops = [node for node in ast.walk(definition)
             if isinstance(node, ast.For) and ast.unparse(node.iter) == iterable]
    return _only(loops, f"loops over {iterable}", definition)


def insert_after(definition: ast.FunctionDef, body: list[ast.stmt], statement: str, new: str) \
        -> None:
    """Put ``new`` behind the one statement of ``body`` that reads ``statement``.

    Raises:
        UnknownUpstreamError: there is none, or several.
    """
    place = _only([i for i, node in enumerate(body) if ast.unparse(node) == statement],
                  f"statements {statement!r}", definition)
    body[place + 1 : place + 1] = ast.parse(new).body


def expression(text: str) -> ast.expr:
    """``text`` as a syntax tree."""
    return ast.parse(text, mode="eval").body


def _only(found: list[_Found], what: str, definition: ast.FunctionDef) -> _Found:
    if len(found) != 1:
        raise UnknownUpstreamError(
            f"{definition.name} has {len(found)} {what} where one was expected; this adapter does "
            "not know that version"
        )
    return found[0]

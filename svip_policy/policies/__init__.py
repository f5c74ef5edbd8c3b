"""The registry of policies. A new one: its file here, its class in ``POLICIES``."""

from __future__ import annotations

import ast
import math
from typing import Any

from ..errors import ParameterError, PolicyTextError
from ..protocol import LengthPolicy
from .ada_edl import AdaEDL
from .adaptive_confidence import AdaptiveConfidence
from .bandit import Bandit
from .confidence import Confidence
from .constant import Constant
from .draft_verify import DraftVerify
from .gamma_tune import GammaTune
from .heuristic import Heuristic
from .margin import Margin
from .marginal import Marginal
from .path_probability import PathProbability
from .svip import SVIP

__all__ = [
    "POLICIES", "SVIP", "AdaEDL", "AdaptiveConfidence", "Bandit", "Confidence", "Constant",
    "DraftVerify", "GammaTune", "Heuristic", "Margin", "Marginal", "PathProbability", "parse",
    "resolve",
]

POLICIES: dict[str, Any] = {policy.name: policy for policy in (
    Constant, Heuristic, SVIP, Confidence, AdaptiveConfidence, DraftVerify, AdaEDL,
    PathProbability, Margin, GammaTune, Bandit, Marginal,
)}


def parse(text: str) -> LengthPolicy:
    """Make a policy from text: ``svip(threshold=0.3)``, ``constant(5)`` or just ``svip``.

    Arguments are Python literals, ``inf``, or policies. ``repr(policy)`` is such a text.

    Raises:
        PolicyTextError: the text is not of this form, or names no registered policy.
        ParameterError: an argument is unknown or out of its range.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise PolicyTextError(f"{text!r} is no policy text; write e.g. 'svip(threshold=0.3)'") \
            from error
    policy = _value(node, text)
    if not isinstance(policy, LengthPolicy):
        raise PolicyTextError(f"{text!r} is no policy text; write e.g. 'svip(threshold=0.3)'")
    return policy


def resolve(policy: LengthPolicy | str) -> LengthPolicy:
    """``policy`` itself, or the one its text names.

    Raises:
        TypeError: it is neither text nor has the methods of :class:`LengthPolicy`.
    """
    if isinstance(policy, str):
        return parse(policy)
    if isinstance(policy, type) or not isinstance(policy, LengthPolicy):
        raise TypeError(
            f"{policy!r} is no length policy; give text such as 'svip' or an object with "
            "observe(step), verified(drafted, accepted) and fresh()"
        )
    return policy


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name) and node.id == "inf":
        return math.inf
    if isinstance(node, ast.Name):
        return _make(node.id, [], {}, text)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        keywords = {str(k.arg): _value(k.value, text) for k in node.keywords}
        if len(keywords) < len(node.keywords):
            raise PolicyTextError(f"{text!r} gives an argument twice")
        return _make(node.func.id, [_value(a, text) for a in node.args], keywords, text)
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(element, text) for element in node.elts)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise PolicyTextError(
            f"{ast.unparse(node)!r} in {text!r} is neither a literal nor a policy"
        ) from error


def _make(name: str, arguments: list[Any], keywords: dict[str, Any], text: str) -> Any:
    if name not in POLICIES:
        raise PolicyTextError(f"no policy {name!r} in {text!r}; known: {', '.join(POLICIES)}")
    try:
        return POLICIES[name](*arguments, **keywords)
    except TypeError as error:
        raise ParameterError(f"{text!r}: {error}; {name} is {POLICIES[name]()!r}") from error

"""What the policy dataclasses share: validation of parameters and their one-line text."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from ..errors import ParameterError


def check_count(policy: str, name: str, value: object, low: int = 1) -> None:
    """Raise ParameterError unless ``value`` is a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise ParameterError(
            f"{policy}: {name} is {value!r}; give a whole number of at least {low}"
        )


def check_real(
    policy: str, name: str, value: object, low: float = 0.0, high: float = math.inf
) -> None:
    """Raise ParameterError unless ``value`` is a number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
        raise ParameterError(f"{policy}: {name} is {value!r}; give a number in [{low}, {high}]")


def describe(policy: Any) -> str:
    """One line such as ``svip(threshold=0.3, c=0.15, cap=40)``, which parse() reads back."""
    values = {f.name: _plain(getattr(policy, f.name)) for f in fields(policy) if f.init}
    return f"{policy.name}({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def _plain(value: Any) -> Any:
    """A Python number for a numpy one, whose repr would not parse."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, Real) else value

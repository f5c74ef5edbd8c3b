"""What the commands are given: prompts, models, costs, lengths; and what is told of them."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

from .. import provenance
from ..cost import CostModel
from ..errors import ParameterError
from . import models
from .models import Models
from .prompts import Prompt, read_prompts


def prompts_of(path: Path | None, field: str | None) -> list[Prompt]:
    """Prompts of a file, by default the repository's own.

    Args:
        path: see :func:`.prompts.read_prompts`.
        field: likewise.

    Raises:
        ParameterError: none are there.
    """
    own = models.EXAMPLES / "prompts.jsonl"
    if path is None and not own.is_file():
        raise ParameterError("the repository's own prompts are not here: give --prompts")
    return read_prompts(path or own, field)


def load(target: str, draft: str, dtype: str, device: str) -> Models:
    """Both models; see :func:`.models.load`."""
    # transformers warns of each generation setting that greedy decoding does not use.
    warnings.filterwarnings("ignore", message=".*generation_config.*")
    return models.load(target, draft, dtype, device)


def header(of: Models, dtype: str, seed: int, prompts: list[Prompt]) -> dict[str, Any]:
    """The conditions, as far as they are known before a run."""
    from svip_adapters._handle import conditions

    # Of the target's device, by the name that a live trace gives it.
    known = conditions(target=of.target)
    digest = hashlib.sha256(repr(prompts).encode()).hexdigest()[:16]
    return provenance.collect(**known | {"models": of.names, "dtype": dtype, "seed": seed,
                                         "prompts_sha256": digest})


def costs_of(path: Path) -> tuple[CostModel, dict[str, Any]]:
    """Costs and their conditions.

    Raises:
        ParameterError: ``path`` holds none.
    """
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return CostModel.of(entry["costs"]), dict(entry["conditions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{path} holds no costs ({error!r}): write them with "
                             f"'svip doctor --costs {path}'") from error


def lengths_of(text: str, example: str) -> list[int]:
    """Lengths given as ``128,256``, ascending.

    Raises:
        ParameterError: they are none; the message has ``example``.
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise ParameterError(f"long-form is {text!r}; give lengths such as '{example}'")
    return found

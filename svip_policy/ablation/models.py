"""Load a target and its draft, by name, or the pair that is embedded in the repository."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ParameterError

EMBEDDED = "embedded"
EXAMPLES = Path(__file__).parents[2] / "examples"  # where there is a clone of the repository


@dataclass(frozen=True)
class Models:
    """Both models and the target's tokenizer, and what each is, in words."""

    target: Any
    draft: Any
    tokenizer: Any
    names: dict[str, str]


def load(target: str, draft: str, dtype: str, device: str = "cpu") -> Models:
    """Load both.

    Args:
        target: a hub id, a local path, or ``"embedded"`` for SmolLM2-135M-Instruct.
        draft: likewise; ``"embedded"`` goes with the embedded target alone.
        dtype: ``"bfloat16"``, ``"float16"`` or ``"float32"``.
        device: of both, as torch names it.

    Raises:
        ParameterError: only one of them is the embedded one, or the repository, which has it,
            is not there; or torch knows no such device or dtype; or vocabularies differ.
        OSError: from transformers, where a model cannot be loaded.
    """
    import torch

    if (target == EMBEDDED) != (draft == EMBEDDED):
        raise ParameterError(f"target is {target!r} and draft {draft!r}: the embedded draft goes "
                             "with the embedded target alone; give both, or none")
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ParameterError(f"dtype is {dtype!r}; give bfloat16, float16 or float32")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ParameterError(f"device is {device!r}: {str(error).splitlines()[0]}") from error
    if target == EMBEDDED:
        return _embedded(kind, place)
    from svip_adapters.hf_text import same_vocabulary
    from transformers import AutoModelForCausalLM, AutoTokenizer

    one, other = (AutoModelForCausalLM.from_pretrained(name, torch_dtype=kind).to(place).eval()
                  for name in (target, draft))
    same_vocabulary(one, other)
    return Models(one, other, AutoTokenizer.from_pretrained(target),
                  {"target": _revised(target, one), "draft": _revised(draft, other)})


def _revised(name: str, model: Any) -> str:
    """A model's name with what tells its weights: the hub's revision, or sizes and times."""
    revision = getattr(model.config, "_commit_hash", None)
    if revision is None:
        files = sorted(p for kind in ("*.safetensors", "*.bin") for p in Path(name).glob(kind))
        stated = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files]
        revision = hashlib.sha256(repr(stated).encode()).hexdigest()
    return f"{name} ({revision[:12]})"


def _embedded(kind: Any, place: Any) -> Models:
    pair = _pair()
    target, tokenizer = pair.load_target(kind)
    target = target.to(place)
    return Models(target, pair.load_draft(target), tokenizer, {
        "target": f"SmolLM2-135M-Instruct from {pair.target_name()}",
        "draft": "examples/smollm2/draft.safetensors, SHA-256 "
                 + hashlib.sha256(pair.DRAFT_WEIGHTS.read_bytes()).hexdigest()[:12],
    })


def _pair() -> ModuleType:
    """``examples/smollm2/pair.py``, which is no part of the package."""
    path = EXAMPLES / "smollm2" / "pair.py"
    spec = importlib.util.spec_from_file_location("svip_embedded_pair", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ParameterError(f"the embedded pair is not at {path.parent}: it comes with a clone of "
                             "the repository (pip install -e); or name a target and a draft")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Upstream EAGLE-2 on the embedded target, with a head of ours (``eagle/``).

Needs a checkout of github.com/SafeAILab/EAGLE and transformers 4.53.3: see
:func:`load_eagle`.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from svip_adapters import eagle

from . import pair

HEAD = Path(__file__).with_name("eagle")


def checkout() -> Path:
    """A checkout of SafeAILab/EAGLE: ``$SVIP_EAGLE``, else in the cache folder.

    Raises:
        FileNotFoundError: there is none.
    """
    return pair.upstream_checkout("SVIP_EAGLE", "EAGLE", "eagle/model/cnets1.py",
                                  "https://github.com/SafeAILab/EAGLE")


def base_folder() -> Path:
    """The target as EAGLE wants it: a folder with an index of its tensors.

    Its weights are links to those of the converted target.
    """
    folder = pair.cache_folder() / "SmolLM2-135M-Instruct-for-EAGLE"
    if not (folder / "config.json").exists():
        pair.make_whole(folder, functools.partial(fill, pair.local_target()))
    return folder


def fill(source: Path, folder: Path) -> None:
    """Links and configurations in ``folder`` for the model in ``source``."""
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        if (source / name).exists():
            link_or_copy((source / name).resolve(), folder / name)
    config = json.loads((source / "config.json").read_text())  # the rotary base is in it
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": None}))
    # Saved by transformers 4 it is a LlamaTokenizer, which EAGLE would load without the "Fast".
    tokenizer = json.loads((source / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(
        tokenizer | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}))


def link_or_copy(source: Path, place: Path) -> None:
    """A symbolic link, where the system has them."""
    try:
        place.symlink_to(source)
    except OSError:
        shutil.copy(source, place)


def load_eagle(dtype: torch.dtype = torch.bfloat16, head: Path = HEAD) -> Any:
    """Upstream's ``EaModel``: the embedded target with our EAGLE-2 head, in evaluation mode.

    Args:
        dtype: of both.
        head: folder with config.json and model.safetensors.

    Raises:
        FileNotFoundError: there is no checkout of EAGLE.
        UnsupportedError: the installed transformers is none that EAGLE runs with.
    """
    eagle.check_versions()
    place = checkout()
    sys.path.insert(0, str(place))
    from eagle.model import ea_model  # type: ignore[import-not-found]

    if place.resolve() not in Path(ea_model.__file__).resolve().parents:
        raise ImportError(f"eagle was imported from {ea_model.__file__}, not from {place}: EAGLE "
                          "of PyPI has the same name; use an environment without it")
    model = ea_model.EaModel.from_pretrained(
        use_eagle3=False, base_model_path=str(base_folder()), ea_model_path=str(head),
        torch_dtype=dtype)
    return model.eval()  # in training mode the head drops its cache

"""Upstream EAGLE-2 on the embedded target, with a head of ours (``eagle/``).

Needs a checkout of github.com/SafeAILab/EAGLE and transformers 4.53.3: see
:func:`load_eagle`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
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
    default = pair.cache_folder() / "upstreams" / "EAGLE"
    path = Path(os.environ.get("SVIP_EAGLE", default))
    if not (path / "eagle" / "model" / "cnets1.py").is_file():
        raise FileNotFoundError(
            f"no checkout of EAGLE at {path}: git clone https://github.com/SafeAILab/EAGLE {path}, "
            "or set SVIP_EAGLE to where you have one"
        )
    return path


def base_folder() -> Path:
    """The target as EAGLE wants it: a folder with an index of its tensors.

    The weights are links to those of the converted target.
    """
    folder = pair.cache_folder() / "SmolLM2-135M-Instruct-for-EAGLE"
    if (folder / "config.json").exists():
        return folder
    source = Path(pair.target_source())
    if not source.is_dir():
        from huggingface_hub import snapshot_download

        source = Path(snapshot_download(pair.HUB_ID))
    scratch = Path(tempfile.mkdtemp(dir=pair.cache_folder()))
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        if (source / name).exists():
            link_or_copy((source / name).resolve(), scratch / name)
    config = json.loads((source / "config.json").read_text())  # the base is in it either way
    config.pop("rope_parameters", None)
    (scratch / "config.json").write_text(json.dumps(config | {"rope_scaling": None}))
    tokenizer = json.loads((source / "tokenizer_config.json").read_text())
    (scratch / "tokenizer_config.json").write_text(json.dumps(
        tokenizer | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    (scratch / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}))
    shutil.rmtree(folder, ignore_errors=True)
    return scratch.rename(folder)


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
    sys.path.insert(0, str(checkout()))
    from eagle.model.ea_model import EaModel  # type: ignore[import-not-found]

    model = EaModel.from_pretrained(
        use_eagle3=False, base_model_path=str(base_folder()), ea_model_path=str(head),
        torch_dtype=dtype)
    return model.eval()  # in training mode the head drops its cache

"""Upstream GliDe & CaPE on the embedded target, with a draft of ours (``glide/``).

Needs a checkout of github.com/NonvolatileMemory/GliDe_with_a_CaPE_ICML_24, transformers 4.36.2
and numpy < 2: see :func:`load_glide`.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from svip_adapters import glide_cape

from . import pair

DRAFT = Path(__file__).with_name("glide")


def checkout() -> Path:
    """A checkout of GliDe: ``$SVIP_GLIDE``, else in the cache folder.

    Raises:
        FileNotFoundError: there is none.
    """
    return pair.upstream_checkout("SVIP_GLIDE", "GliDe", "glide/glideModel.py",
                                  "https://github.com/NonvolatileMemory/GliDe_with_a_CaPE_ICML_24")


def tokenizer_folder() -> Path:
    """The target's tokenizer in a form that the libraries of early 2024 read."""
    folder = pair.cache_folder() / "SmolLM2-135M-Instruct-tokenizer-of-2024"
    if not (folder / "tokenizer.json").exists():
        pair.make_whole(folder, functools.partial(fill, pair.local_target()))
    return folder


def fill(source: Path, folder: Path) -> None:
    """The tokenizer in ``source``, rewritten into ``folder``."""
    content = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    # Pairs were written as one string then.
    merges = content["model"]["merges"]
    content["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in merges]
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    template = source / "chat_template.jinja"
    if template.exists():
        config["chat_template"] = template.read_text(encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def load_glide(dtype: torch.dtype = torch.bfloat16, weights: Path = DRAFT / "model.safetensors") \
        -> tuple[Any, Any, Any]:
    """Upstream's models of the embedded target and our draft, and the tokenizer.

    Call it, and generate, within :func:`svip_adapters.glide_cape.importable`.

    Args:
        dtype: of both.
        weights: of the draft, without the embedding and head, which are the target's.

    Raises:
        FileNotFoundError: there is no checkout of GliDe.
        UnsupportedError: the installed transformers is none that GliDe runs with.
    """
    glide_cape.check_versions()
    sys.path.insert(0, str(checkout()))
    from glide import glideModel, modeling_llama_kv  # type: ignore[import-not-found]
    from transformers import AutoTokenizer

    source = pair.target_source()
    target = modeling_llama_kv.LlamaForCausalLM.from_pretrained(source, torch_dtype=dtype)
    config = target.config
    for layer in target.model.layers:
        # Upstream's copy of Llama takes 10,000 as rotary base, whatever the configuration says.
        layer.self_attn.rotary_emb = modeling_llama_kv.LlamaRotaryEmbedding(
            config.hidden_size // config.num_attention_heads,
            max_position_embeddings=config.max_position_embeddings, base=config.rope_theta)
    shape = {k: v for k, v in target.config.to_dict().items() if k not in ("model_type",)}
    # Its own rotary base is the default of GliDe, whatever the target's.
    draft = glideModel.smallLlamaForCausalLM(glideModel.smallLlamaConfig(**{
        **shape, "num_hidden_layers": 1, "rope_theta": 10000.0, "rope_scaling": None,
        "large_hidden_size": shape["hidden_size"],
        "large_num_attention_heads": shape["num_attention_heads"],
        "large_head_dim": shape["hidden_size"] // shape["num_attention_heads"],
    })).to(dtype)
    draft.load_state_dict({k: v.to(dtype) for k, v in load_file(weights).items()}, strict=False)
    draft.model.embed_tokens = target.model.embed_tokens
    draft.lm_head = target.lm_head
    for model in (target, draft):
        model.generation_config.pad_token_id = model.generation_config.eos_token_id
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder())
    return target.eval(), draft.eval(), tokenizer

"""Upstream GliDe & CaPE, where it is to be found, on random models small enough for tests.

It exists only on GitHub, without a licence: a checkout of
NonvolatileMemory/GliDe_with_a_CaPE_ICML_24 is taken from ``$SVIP_GLIDE``, else from
``upstreams/GliDe`` in the cache folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata

from eagle_models import checkout, save_tokenizer, soften


def why_not():
    """Why tests with upstream cannot run here; empty if they can."""
    version = metadata.version("transformers") if importlib.util.find_spec("transformers") else "0"
    if not version.startswith("4.36."):
        return f"GliDe runs with transformers 4.36, not with {version}"
    folder = checkout("SVIP_GLIDE", "GliDe")
    return "" if (folder / "glide").is_dir() else (
        "no GliDe: set SVIP_GLIDE to a checkout of NonvolatileMemory/GliDe_with_a_CaPE_ICML_24")


def modules():
    """Upstream's draft and target modules; within :func:`glide_cape.importable`."""
    folder = str(checkout("SVIP_GLIDE", "GliDe"))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return (importlib.import_module("glide.glideModel"),
            importlib.import_module("glide.modeling_llama_kv"))


def tokenizer_folder(folder, vocab=32):
    """A tokenizer whose end of sequence no tiny model writes."""
    save_tokenizer(folder, vocab)
    return folder


def tiny_pair(seed=0, hidden=32, heads=4, vocab=32):
    """A random target and a GliDe draft that guesses much of what it writes, float32."""
    import torch
    from transformers import LlamaConfig

    draft_module, target_module = modules()
    torch.manual_seed(seed)
    shape = {"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 2 * hidden,
             "num_attention_heads": heads, "num_key_value_heads": heads // 2,
             "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": vocab + 5,
             "pad_token_id": 0, "initializer_range": 0.3}
    target = target_module.LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **shape)).eval()
    config = draft_module.smallLlamaConfig(
        num_hidden_layers=1, large_hidden_size=hidden, large_num_attention_heads=heads,
        large_head_dim=hidden // heads, **shape)
    draft = draft_module.smallLlamaForCausalLM(config).eval()
    for model in (target, draft):
        soften(model, 0.25)
    with torch.no_grad():
        # Nearly the token's own embedding in both, so that the draft is often right.
        draft.model.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        draft.lm_head.weight.copy_(target.lm_head.weight)
    for model in (target, draft):
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = vocab + 5
    return target, draft

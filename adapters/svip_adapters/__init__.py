"""Attach a draft length policy to a speculative decoding framework."""

from __future__ import annotations

from typing import Any

from svip_policy import LengthPolicy

from ._handle import Handle

__all__ = ["Handle", "attach"]


def attach(model: Any, policy: LengthPolicy | str | None, **options: Any) -> Handle:
    """Attach ``policy`` to ``model`` with the adapter made for its framework.

    Args:
        model: the target of Hugging Face transformers' assisted generation, an EaModel of
            EAGLE-1, -2 or -3, GliDe's draft model, or a vllm.LLM whose worker is in this
            process.
        policy: an object with the methods of :class:`svip_policy.LengthPolicy`, or its
            text, such as ``"svip(threshold=0.3)"``; None only records the framework's rounds.
        options: passed on to the adapter's own ``attach``.

    Raises:
        TypeError: no adapter is made for such a model.
    """
    # GliDe's draft is a transformers model too.
    if hasattr(type(model), "medusa_forward"):
        from . import glide_cape

        return glide_cape.attach(model, policy, **options)
    if hasattr(model, "ea_layer"):
        from . import eagle

        return eagle.attach(model, policy, **options)
    if hasattr(model, "llm_engine"):
        from . import vllm

        return vllm.attach(model, policy, **options)
    if hasattr(type(model), "_get_candidate_generator"):
        from . import hf

        return hf.attach(model, policy, **options)
    raise TypeError(
        f"no adapter for {type(model).__module__}.{type(model).__qualname__}; "
        "give a transformers model with generate(), an EaModel of EAGLE, whose ea_layer has "
        "topK_genrate and reset_kv, GliDe's draft, which has medusa_forward, or a vllm.LLM"
    )

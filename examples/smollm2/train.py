"""Distil the draft: cut layers out of the target, train them on text the target wrote.

    python examples/smollm2/make_text.py text.jsonl
    python examples/smollm2/train.py text.jsonl --work work/ --minutes 60

AdamW on the Kullback-Leibler divergence from the target's own next-token distribution, which
``make_text.py`` stores with the text, restricted to the draft's vocabulary; on the written
token itself where a text has none. The learning rate follows a cosine over the wall-clock
budget. Resumes.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engines import TOP
from pair import draft_config, load_target
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

LAYERS = (0, 1, 29)
HEAD_SIZE = 8192
MAX_LENGTH = 768
NO_MASS = -30.0  # log probability of what is not there; -inf times 0 would be NaN


@dataclass
class Chat:
    """One chat: ids (length,), where the answer starts, the target's most probable tokens
    there (answer, TOP) as places in the draft's vocabulary, and the first of them or -1."""

    ids: np.ndarray
    start: int
    top: np.ndarray
    logp: np.ndarray
    wanted: np.ndarray
    kind: str


def read_chats(paths: list[Path]) -> list[dict[str, Any]]:
    """All chats of JSONL files (gzipped or not), in a fixed random order."""
    chats = []
    for path in paths:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
            chats += [json.loads(line) for line in file]
    chats = [c for c in chats if len(c["ids"]) > 1 and len(c["prompt_ids"]) < MAX_LENGTH - 16]
    random.Random(0).shuffle(chats)
    return chats


def head_ids(chats: list[dict[str, Any]]) -> np.ndarray:
    """The HEAD_SIZE most frequent generated tokens, ascending ids."""
    count = Counter(token for chat in chats for token in chat["ids"])
    kept = [token for token, _ in count.most_common(HEAD_SIZE)]
    share = sum(count[t] for t in kept) / sum(count.values())
    print(f"the draft's vocabulary holds {share:.1%} of the text's tokens", flush=True)
    return np.array(sorted(kept), dtype=np.int64)


def training_chats(chats: list[dict[str, Any]], subset: np.ndarray) -> list[Chat]:
    """The chats with their tokens as places in the draft's vocabulary ``subset``."""
    place = np.full(2**16, -1)
    place[subset] = np.arange(len(subset))
    result = []
    for chat in chats:
        ids = np.array((chat["prompt_ids"] + chat["ids"])[:MAX_LENGTH])
        start = len(chat["prompt_ids"])
        if "top" in chat:
            shape = (len(chat["ids"]), TOP)
            top = np.frombuffer(base64.b64decode(chat["top"]), np.uint16).reshape(shape)
            logp = np.frombuffer(base64.b64decode(chat["logp"]), np.float16).reshape(shape)
        else:  # all mass on the token that was written
            top = np.repeat(np.array(chat["ids"])[:, None], TOP, 1)
            logp = np.full(top.shape, NO_MASS)
            logp[:, 0] = 0.0
        top, logp = place[top[: len(ids) - start]], logp[: len(ids) - start].astype(np.float32)
        # The target given that it writes a token of the draft's vocabulary.
        outside = (np.exp(logp) * (top < 0)).sum(1, keepdims=True).clip(max=0.999)
        logp = np.where(top < 0, NO_MASS, logp - np.log1p(-outside))
        wanted = top[:, 0].copy()  # -1: the draft cannot agree
        result.append(Chat(ids, start, np.maximum(top, 0).astype(np.uint16),
                           logp.astype(np.float16), wanted, chat.get("kind", "older")))
    return result


def length_batches(lengths: list[int], budget: int, rng: random.Random) -> list[list[int]]:
    """Indices in batches of like length, at most ``budget`` padded tokens each."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i] + rng.random() * 16)
    batches: list[list[int]] = [[]]
    for i in order:
        if (len(batches[-1]) + 1) * lengths[i] > budget and batches[-1]:
            batches.append([])
        batches[-1].append(i)
    rng.shuffle(batches)
    return batches


def padded(sequences: list[Any]) -> Tensor:
    """Right-padded ids (batch, longest); the causal mask hides the padding."""
    rows = [torch.as_tensor(s, dtype=torch.long) for s in sequences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=2)


def cut_draft(target: Any) -> Any:
    """Layers LAYERS of the target, their MLPs cut to the neurons of largest weight."""
    config = draft_config(target)
    draft = LlamaForCausalLM(config).float()
    for layer, source in zip(draft.model.layers, LAYERS, strict=True):
        state = {k: v.float() for k, v in target.model.layers[source].state_dict().items()}
        norms = [state["mlp.gate_proj.weight"].norm(dim=1), state["mlp.up_proj.weight"].norm(dim=1),
                 state["mlp.down_proj.weight"].norm(dim=0)]
        keep = torch.stack(norms).prod(0).topk(config.intermediate_size).indices.sort().values
        for name in ("gate_proj", "up_proj"):
            state[f"mlp.{name}.weight"] = state[f"mlp.{name}.weight"][keep]
        state["mlp.down_proj.weight"] = state["mlp.down_proj.weight"][:, keep]
        layer.load_state_dict(state)
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    draft.model.embed_tokens = target.model.embed_tokens.float().requires_grad_(False)
    return draft


def answer_logits(draft: Any, head: Tensor, chats: list[Chat]) -> Tensor:
    """Draft logits at the positions that predict the answers, (answers, HEAD_SIZE)."""
    hidden = draft.model(padded([c.ids for c in chats]), use_cache=False).last_hidden_state
    rows = [hidden[i, c.start - 1 : len(c.ids) - 1] for i, c in enumerate(chats)]
    return nn.functional.linear(torch.cat(rows), head)


def distillation_loss(logits: Tensor, chats: list[Chat]) -> Tensor:
    """KL(target || draft) over the stored top tokens and one bin for all the others."""
    top = torch.from_numpy(np.concatenate([c.top for c in chats]).astype(np.int64))
    logp = torch.from_numpy(np.concatenate([c.logp for c in chats])).float()
    logq = logits.float().log_softmax(-1).gather(1, top)
    rest_p = (1 - logp.exp().sum(1)).clamp_min(1e-6)
    rest_q = (1 - logq.exp().sum(1)).clamp_min(1e-6)
    inside = (logp.exp() * (logp - logq)).sum(1)
    loss = inside + rest_p * (rest_p.log() - rest_q.log())
    return loss[rest_p < 0.95].mean()


@torch.inference_mode()
def agreement(draft: Any, head: Tensor, chats: list[Chat]) -> dict[str, float]:
    """Share of answer positions where draft and target agree on the top token, by kind."""
    hits: dict[str, list[float]] = {}
    for batch in length_batches([len(c.ids) for c in chats], 6144, random.Random(0)):
        for chat in (chats[i] for i in batch):
            with torch.autocast("cpu", torch.bfloat16):
                best = answer_logits(draft, head, [chat]).argmax(-1).numpy()
            same = best == chat.wanted
            hits.setdefault(chat.kind, []).extend(same)
            hits.setdefault("all", []).extend(same)
    return {kind: float(np.mean(h)) for kind, h in sorted(hits.items())}


def batches_forever(chats: list[Chat], budget: int, rng: random.Random) -> Iterator[list[Chat]]:
    """Batches of at most ``budget`` tokens, epoch after epoch."""
    while True:
        for batch in length_batches([len(c.ids) for c in chats], budget, rng):
            yield [chats[i] for i in batch]


def save_draft(draft: Any, subset: np.ndarray, path: Path) -> None:
    """The trained tensors in bfloat16 and the draft's vocabulary; no embedding, no head."""
    state = {
        name: tensor.detach().bfloat16().contiguous() for name, tensor in draft.state_dict().items()
        if "embed_tokens" not in name and "lm_head" not in name
    }
    save_file({**state, "head_ids": torch.from_numpy(subset).to(torch.int32)}, path)


def train(args: argparse.Namespace, chats: list[Chat], subset: np.ndarray) -> None:
    """Train until the wall-clock budget is used; a checkpoint every few minutes."""
    target, _ = load_target(torch.bfloat16)
    head = target.lm_head.weight.detach()[torch.from_numpy(subset)].clone()
    draft = cut_draft(target).train()
    if args.init:
        draft.load_state_dict({k: v for k, v in load_file(args.init).items() if k != "head_ids"},
                              strict=False)
    trained = [p for n, p in draft.named_parameters()
               if p.requires_grad and "embed" not in n and "lm_head" not in n]
    optimizer = torch.optim.AdamW(trained, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    checkpoint = args.work / "checkpoint.pt"
    step, tokens, used = 0, 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        draft.load_state_dict(state["draft"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        step, tokens, used = state["step"], state["tokens"], state["used"]
    held_out, kept = chats[:200], chats[200:]
    began, saved, budget = time.time() - used, time.time(), args.minutes * 60
    for batch in batches_forever(kept, args.batch_tokens, random.Random(step)):
        done = (time.time() - began) / budget
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min((step + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * done))
        with torch.autocast("cpu", torch.bfloat16):
            logits = answer_logits(draft, head, batch)
        loss = distillation_loss(logits, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + sum(len(c.ids) for c in batch)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} tokens {tokens} "
                  f"{tokens / (time.time() - began):.0f}/s {done:.1%}", flush=True)
        if time.time() - saved > 300:
            saved = time.time()
            weights = {k: v for k, v in draft.state_dict().items() if "embed" not in k}
            torch.save({"draft": weights, "optimizer": optimizer.state_dict(), "step": step,
                        "tokens": tokens, "used": time.time() - began}, checkpoint)
            save_draft(draft, subset, args.work / "draft.safetensors")
            print("agreement", agreement(draft, head, held_out), flush=True)
    save_draft(draft, subset, args.out)
    print(f"{step} steps, {tokens} tokens; agreement", agreement(draft, head, held_out))


def same_text_as_before(work: Path, chats: list[dict[str, Any]]) -> None:
    """A checkpoint goes with its text and held-out chats: other text needs another folder."""
    digest = hashlib.sha256(json.dumps([c["ids"] for c in chats]).encode()).hexdigest()
    note = work / "text.sha256"
    if note.exists() and note.read_text() != digest:
        raise SystemExit(f"{work} was begun with other text; name another folder with --work")
    note.write_text(digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path, nargs="+", help="JSONL from make_text.py")
    parser.add_argument("--work", type=Path, required=True, help="folder for what resumes")
    parser.add_argument("--out", type=Path, help="default: draft.safetensors in --work")
    parser.add_argument("--minutes", type=float, default=90.0, help="of training, all starts")
    parser.add_argument("--init", type=Path, help="draft.safetensors to go on from")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    args = parser.parse_args()
    args.out = args.out or args.work / "draft.safetensors"
    torch.manual_seed(0)
    args.work.mkdir(parents=True, exist_ok=True)
    ids_file = args.work / "head_ids.npy"
    chats = read_chats(args.text)
    same_text_as_before(args.work, chats)
    subset = np.load(ids_file) if ids_file.exists() else head_ids(chats)
    np.save(ids_file, subset)
    print(f"{len(chats)} chats, {sum('top' in c for c in chats)} with the target's distribution",
          flush=True)
    train(args, training_chats(chats, subset), subset)


if __name__ == "__main__":
    main()

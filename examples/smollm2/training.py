"""What the trainings of heads on the target's states share: the states kept in a file, the loss
between distributions, and a loop over a wall-clock budget that resumes."""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from train import Chat, batches_forever, read_chats, same_text_as_before, training_chats

FREQUENT, SAMPLED = 4096, 1024  # tokens of the vocabulary that each step compares


class KeptStates:
    """The target's states of each chat, computed when first wanted and kept in a file.

    Args:
        compute: the states of chats, (chats, longest, width).
        width: of a state.
        chats: all there will be.
        path: of the file, about 2 bytes a number.
    """

    def __init__(self, compute: Callable[[list[Chat]], Tensor], width: int, chats: list[Chat],
                 path: Path) -> None:
        self._compute = compute
        ends = np.cumsum([len(c.ids) for c in chats])
        self._spans = {id(chat): (int(end) - len(chat.ids), int(end))
                       for chat, end in zip(chats, ends, strict=True)}
        self._kept = np.memmap(path, np.float16, "r+" if path.exists() else "w+",
                               shape=(int(ends[-1]), width))

    @torch.no_grad()
    def of(self, chats: list[Chat]) -> Tensor:
        """(chats, longest, width), zeros where a chat is shorter."""
        spans = [self._spans[id(c)] for c in chats]
        # A file begins as zeros, which no state is.
        if not all(self._kept[start].any() and self._kept[end - 1].any() for start, end in spans):
            for row, (start, end) in zip(self._compute(chats), spans, strict=True):
                self._kept[start:end] = row[: end - start].to(torch.float16).numpy()
        rows = [torch.from_numpy(self._kept[start:end].astype(np.float32)) for start, end in spans]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def frequent_tokens(chats: list[dict[str, Any]]) -> Tensor:
    """The FREQUENT most frequent tokens of the answers."""
    counts = np.bincount(np.concatenate([c["ids"] for c in chats]))
    return torch.from_numpy(np.argsort(-counts, kind="stable")[:FREQUENT].copy())


def cross_entropy(predicted: Tensor, wanted: Tensor, head: Tensor, frequent: Tensor) -> Tensor:
    """Between the distributions that the output head makes of two sets of features.

    Over the frequent tokens and a sample of the others.

    Args:
        predicted: (positions, hidden).
        wanted: the target's, (positions, hidden).
        head: (vocab, hidden).
        frequent: ids.
    """
    rows = head[torch.cat((frequent, torch.randint(len(head), (SAMPLED,)))).unique()]
    with torch.autocast("cpu", torch.bfloat16):
        logits = nn.functional.linear(predicted, rows).float()
        with torch.no_grad():
            aim = nn.functional.linear(wanted, rows).float().softmax(-1)
    return -(aim * logits.log_softmax(-1)).sum(-1).mean()


def same_top_token(predicted: Tensor, wanted: Tensor, head: Tensor) -> Tensor:
    """Whether two sets of features have the same most probable token, (positions,)."""
    with torch.autocast("cpu", torch.bfloat16):
        mine, its = (nn.functional.linear(x, head).argmax(-1) for x in (predicted, wanted))
    return (mine == its).float()


def arguments(description: str, out: str, lr: float) -> argparse.Namespace:
    """The options that these trainings have in common."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("text", type=Path, nargs="+", help="JSONL from make_text.py")
    parser.add_argument("--work", type=Path, required=True, help="folder for what resumes")
    parser.add_argument("--out", type=Path, help=f"default: {out} in --work")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training, all starts")
    parser.add_argument("--chats", type=int, default=6000, help="how many, at random")
    parser.add_argument("--init", type=Path, help="weights to go on from")
    parser.add_argument("--lr", type=float, default=lr)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    args = parser.parse_args()
    args.out = args.out or args.work / out
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    return args


def chosen_chats(args: argparse.Namespace) -> tuple[list[Chat], Tensor]:
    """The chats to train on, and the frequent tokens of their answers."""
    chats = read_chats(args.text)[: args.chats]
    same_text_as_before(args.work, chats)
    return training_chats(chats, np.arange(2**16)), frequent_tokens(chats)


def train_for(args: argparse.Namespace, tensors: dict[str, Tensor], chats: list[Chat],
              loss: Callable[[list[Chat]], tuple[Tensor, str]],
              agreement: Callable[[], float]) -> None:
    """Train until the budget is used; weights and a checkpoint every few minutes.

    Matrices are trained by Muon, which was far ahead of AdamW after 130 steps.

    Args:
        args: from :func:`arguments`.
        tensors: what is trained, under the names it is saved by.
        chats: epoch after epoch.
        loss: of a batch, and how to say it.
        agreement: on held-out chats, in [0, 1].
    """
    parameters = list(tensors.values())
    optimizers = [
        torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=args.lr, weight_decay=0.01,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([p for p in parameters if p.ndim < 2], lr=args.lr, betas=(0.9, 0.95)),
    ]
    checkpoint, step, tokens, used = args.work / "checkpoint.pt", 0, 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        load_into(tensors, state["tensors"])
        for optimizer, its in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(its)
        step, tokens, used = state["step"], state["tokens"], state["used"]
    elif args.init:
        load_into(tensors, load_file(args.init))
    began, saved = time.time() - used, time.time()
    for batch in batches_forever(chats, args.batch_tokens, random.Random(step)):
        done = (time.time() - began) / (args.minutes * 60)
        if done >= 1:
            break
        for group in optimizers[0].param_groups + optimizers[1].param_groups:
            group["lr"] = args.lr * min((step + 1) / 30, 0.5 + 0.5 * math.cos(math.pi * done))
        value, said = loss(batch)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + sum(len(c.ids) for c in batch)
        if step % 25 == 0:
            print(f"step {step} {said} tokens {tokens} {tokens / (time.time() - began):.0f}/s "
                  f"{done:.1%}", flush=True)
        if time.time() - saved > 300:
            saved = time.time()
            torch.save({"tensors": tensors, "step": step, "tokens": tokens,
                        "optimizers": [o.state_dict() for o in optimizers],
                        "used": time.time() - began}, checkpoint)
            save(tensors, args.out)
            print(f"agreement {agreement():.1%}", flush=True)
    save(tensors, args.out)
    print(f"{step} steps, {tokens} tokens; agreement {agreement():.1%}")


def load_into(tensors: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Set the trained tensors."""
    for name, tensor in tensors.items():
        tensor.data.copy_(values[name])


def save(tensors: dict[str, Tensor], path: Path) -> None:
    """The trained tensors in bfloat16."""
    save_file({n: t.detach().bfloat16().contiguous() for n, t in tensors.items()}, path)

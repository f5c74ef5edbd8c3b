"""Train an EAGLE-1/2 head for the embedded target on text that the target wrote.

    python examples/smollm2/make_text.py text.jsonl
    python examples/smollm2/train_eagle.py text.jsonl --work work/ --minutes 90

The head is one Llama layer over [embedding of the next token; target's feature], which
predicts the next feature, a feature being the target's hidden state that its output head
reads. The recipe is that of EAGLE (arXiv 2401.15077, section 4.2): smooth L1 between the
features plus cross-entropy between the distributions that the target's output head makes of
them, with uniform noise on the features that go in. Differences, for a training of an hour:
the cross-entropy is over a sample of the vocabulary and its weight is 1 where theirs is 0.1,
the first layer begins with both inputs at one scale, and matrices are trained by Muon
(torch 2.9 or later), which was far ahead of AdamW after 130 steps. Resumes.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pair import load_target
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from train import batches_forever, padded, read_chats, same_text_as_before, training_chats
from transformers import LlamaConfig, LlamaModel

MAX_LENGTH = 768
FREQUENT, SAMPLED = 4096, 1024  # tokens of the vocabulary that each step compares
NOISE = 0.2 * 512  # divided by the length, as EAGLE's training script does


class EagleHead(nn.Module):
    """The head, under the names that EAGLE's own module gives its parameters."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        config = LlamaConfig.from_dict({**target.config.to_dict(), "num_hidden_layers": 1,
                                        "vocab_size": 1, "pad_token_id": None})
        size = config.hidden_size
        self.fc = nn.Linear(2 * size, size)
        self.body = LlamaModel(config).float()
        # EAGLE's first layer has no norm before its attention, and none follows the last.
        self.body.layers[0].input_layernorm = nn.Identity()
        self.body.norm = nn.Identity()
        spread = float(target.get_input_embeddings().weight.detach().float().std())
        with torch.no_grad():  # half of the variance each; features spread by about 1.9
            self.fc.weight[:, :size].normal_(0, 0.7 / (spread * size**0.5))
            self.fc.weight[:, size:].normal_(0, 0.7 / (1.9 * size**0.5))

    def forward(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Predicted next features, (batch, length, hidden), from inputs of that shape."""
        inputs = self.fc(torch.cat((embeddings, features), dim=-1))
        return self.body(inputs_embeds=inputs, use_cache=False).last_hidden_state

    def tensors(self) -> dict[str, Tensor]:
        """The parameters under EAGLE's names."""
        layers = {f"layers.{name}": t for name, t in self.body.layers.state_dict().items()}
        return {"fc.weight": self.fc.weight, "fc.bias": self.fc.bias, **layers}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of :meth:`tensors`."""
        for name, tensor in self.tensors().items():
            tensor.data.copy_(tensors[name])


class Features:
    """The target's features of each chat, computed when first wanted and kept in a file."""

    def __init__(self, target: Any, chats: list[Any], path: Path) -> None:
        self.target = target
        ends = np.cumsum([len(c.ids) for c in chats])
        self.spans = {id(chat): (int(end) - len(chat.ids), int(end))
                      for chat, end in zip(chats, ends, strict=True)}
        shape = (int(ends[-1]), target.config.hidden_size)
        self.kept = np.memmap(path, np.float16, "r+" if path.exists() else "w+", shape=shape)

    @torch.no_grad()
    def of(self, chats: list[Any]) -> Tensor:
        """(chats, longest, hidden), zeros where a chat is shorter."""
        spans = [self.spans[id(c)] for c in chats]
        # A file begins as zeros, which no feature is.
        if not all(self.kept[start].any() and self.kept[end - 1].any() for start, end in spans):
            hidden = self.target.model(padded([c.ids for c in chats]), use_cache=False)[0]
            for row, (start, end) in zip(hidden, spans, strict=True):
                self.kept[start:end] = row[: end - start].to(torch.float16).numpy()
        rows = [torch.from_numpy(self.kept[start:end].astype(np.float32)) for start, end in spans]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def predict(head: EagleHead, embedding: Tensor, chats: list[Any], features: Tensor) -> Tensor:
    """Predicted features at the positions that answer, (answers, hidden)."""
    ids = padded([c.ids for c in chats])
    predicted = head(embedding[ids[:, 1:]].float(), features[:, :-1])
    return answers(predicted, chats, shift=1)


def answers(states: Tensor, chats: list[Any], shift: int) -> Tensor:
    """Those rows of ``states`` that a tree of drafts starts from or extends to.

    Row i of the head predicts the feature at position i + 1. Used are the features at the
    tokens of the answer, each of which tells the token after it.
    """
    return torch.cat([s[c.start - shift : len(c.ids) - shift] for s, c in
                      zip(states, chats, strict=True)])


def losses(head: EagleHead, weights: Tensor, chats: list[Any], kept: Features,
           frequent: Tensor) -> tuple[Tensor, Tensor]:
    """Smooth L1 between features; cross-entropy over a sample of the vocabulary."""
    features = kept.of(chats)
    noise = (torch.rand_like(features) - 0.5) * NOISE / features.shape[1]
    sample = torch.cat((frequent, torch.randint(len(weights), (SAMPLED,)))).unique()
    rows = weights[sample]
    with torch.autocast("cpu", torch.bfloat16):
        predicted = predict(head, weights, chats, features + noise)
        wanted = answers(features, chats, shift=0)
        logits = nn.functional.linear(predicted, rows).float()
        with torch.no_grad():
            aim = nn.functional.linear(wanted, rows).float().softmax(-1)
    regression = nn.functional.smooth_l1_loss(predicted.float(), wanted)
    return regression, -(aim * logits.log_softmax(-1)).sum(-1).mean()


@torch.no_grad()
def agreement(head: EagleHead, weights: Tensor, chats: list[Any], kept: Features) -> float:
    """Share of answer positions where head and target have the same most probable token."""
    hits: list[Tensor] = []
    for chat in chats:
        features = kept.of([chat])
        with torch.autocast("cpu", torch.bfloat16):
            predicted = nn.functional.linear(predict(head, weights, [chat], features), weights)
            wanted = nn.functional.linear(answers(features, [chat], shift=0), weights)
        hits.append((predicted.argmax(-1) == wanted.argmax(-1)).float())
    return float(torch.cat(hits).mean())


def save(head: EagleHead, path: Path) -> None:
    """The head in bfloat16, for ``EaModel.from_pretrained``."""
    save_file({n: t.detach().bfloat16().contiguous() for n, t in head.tensors().items()}, path)


def train(args: argparse.Namespace, chats: list[Any], frequent: Tensor) -> None:
    """Train until the wall-clock budget is used; a checkpoint every few minutes."""
    target = load_target(torch.bfloat16)[0].requires_grad_(False)
    weights = target.lm_head.weight.detach()
    head = EagleHead(target)
    kept = Features(target, chats, args.work / "features.f16")
    parameters = list(head.parameters())
    optimizers = [
        torch.optim.Muon([p for p in parameters if p.ndim == 2], lr=args.lr, weight_decay=0.01,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([p for p in parameters if p.ndim < 2], lr=args.lr, betas=(0.9, 0.95)),
    ]
    checkpoint, step, tokens, used = args.work / "checkpoint.pt", 0, 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        head.load_tensors(state["head"])
        for optimizer, its in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(its)
        step, tokens, used = state["step"], state["tokens"], state["used"]
    elif args.init:
        head.load_tensors(load_file(args.init))
    began, saved, held_out = time.time() - used, time.time(), chats[:60]
    for batch in batches_forever(chats[60:], args.batch_tokens, random.Random(step)):
        done = (time.time() - began) / (args.minutes * 60)
        if done >= 1:
            break
        for group in optimizers[0].param_groups + optimizers[1].param_groups:
            group["lr"] = args.lr * min((step + 1) / 30, 0.5 + 0.5 * math.cos(math.pi * done))
        regression, entropy = losses(head, weights, batch, kept, frequent)
        (regression * args.feature_weight + entropy).backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + sum(len(c.ids) for c in batch)
        if step % 25 == 0:
            print(f"step {step} feature {regression.item():.4f} token {entropy.item():.3f} "
                  f"tokens {tokens} {tokens / (time.time() - began):.0f}/s {done:.1%}", flush=True)
        if time.time() - saved > 300:
            saved = time.time()
            torch.save({"head": head.tensors(), "optimizers": [o.state_dict() for o in optimizers],
                        "step": step, "tokens": tokens, "used": time.time() - began}, checkpoint)
            save(head, args.out)
            print(f"agreement {agreement(head, weights, held_out, kept):.1%}", flush=True)
    save(head, args.out)
    print(f"{step} steps, {tokens} tokens; agreement "
          f"{agreement(head, weights, held_out, kept):.1%} on {len(held_out)} held-out chats")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", type=Path, nargs="+", help="JSONL from make_text.py")
    parser.add_argument("--work", type=Path, required=True, help="folder for what resumes")
    parser.add_argument("--out", type=Path, help="default: model.safetensors in --work")
    parser.add_argument("--minutes", type=float, default=90.0, help="of training, all starts")
    parser.add_argument("--chats", type=int, default=6000, help="how many, at random")
    parser.add_argument("--init", type=Path, help="model.safetensors to go on from")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--feature-weight", type=float, default=1.0)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    args = parser.parse_args()
    args.out = args.out or args.work / "model.safetensors"
    torch.manual_seed(0)
    args.work.mkdir(parents=True, exist_ok=True)
    chats = read_chats(args.text)[: args.chats]
    same_text_as_before(args.work, chats)
    everything = np.arange(2**16)
    counts = np.bincount(np.concatenate([c["ids"] for c in chats]))
    frequent = torch.from_numpy(np.argsort(-counts, kind="stable")[:FREQUENT].copy())
    train(args, training_chats(chats, everything), frequent)


if __name__ == "__main__":
    main()

"""Train a GliDe draft for the embedded target on text that the target wrote.

    python examples/smollm2/make_text.py text.jsonl
    python examples/smollm2/train_glide.py text.jsonl --work work/ --minutes 60

GliDe (arXiv 2402.02082): one layer of self-attention, cross-attention to the keys and values of
the target's last layer, and an MLP; embedding and output head are the target's. In use it
cannot see the target's keys of the tokens that it drafts, so in training a token sees only
those of earlier blocks (the paper's block-wise mask; here blocks of a random length and offset,
since a policy's drafts are of many lengths). Trained on the cross-entropy between the target's
next-token distribution and its own, over a sample of the vocabulary, matrices by Muon (torch
2.9 or later). Resumes.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from pair import load_target
from torch import Tensor, nn
from train import Chat, padded
from training import (
    KeptStates,
    arguments,
    chosen_chats,
    cross_entropy,
    same_top_token,
    train_for,
)

HELD_OUT = 60
BLOCKS = range(4, 13)
ROTARY_BASE = 10000.0  # GliDe's own, also for its queries to the target's keys


def rotated(states: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, length, size), positions from 0."""
    size = states.shape[-1]
    frequencies = ROTARY_BASE ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.arange(states.shape[2])[:, None] * frequencies
    cos, sin = (f(torch.cat((angles, angles), -1)).to(states.dtype) for f in (torch.cos, torch.sin))
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), -1) * sin


class GlideDraft(nn.Module):
    """The draft, under the names that GliDe's own module gives its parameters."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        config = target.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        size, inner = config.hidden_size, config.intermediate_size
        kv = size // self.heads * self.kv_heads
        shapes = {"self_attn.q_proj": (size, size), "self_attn.k_proj": (kv, size),
                  "self_attn.v_proj": (kv, size), "self_attn.o_proj": (size, size),
                  "cross_attn.q_proj": (size, size), "cross_attn.o_proj": (size, size),
                  "mlp.gate_proj": (inner, size), "mlp.up_proj": (inner, size),
                  "mlp.down_proj": (size, inner)}
        # What adds to the embedding begins large and the last norm small: with embedding and
        # head tied, the embedding alone predicts the token it stands for.
        self.weights = {f"model.layers.0.{name}.weight": nn.Parameter(
            (0.06 if name.endswith(("o_proj", "down_proj")) else 0.02) * torch.randn(shape))
            for name, shape in shapes.items()}
        for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
            self.weights[f"model.{name}.weight"] = nn.Parameter(torch.ones(size))
        self.weights["model.norm.weight"].data.copy_(0.3 * target.model.norm.weight.detach())
        self.epsilon = config.rms_norm_eps

    def _linear(self, name: str, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weights[f"model.layers.0.{name}_proj.weight"])

    def _norm(self, name: str, states: Tensor) -> Tensor:
        return nn.functional.rms_norm(states.float(), states.shape[-1:],
                                      self.weights[f"model.{name}.weight"], self.epsilon)

    def _heads(self, states: Tensor, heads: int) -> Tensor:
        return states.unflatten(-1, (heads, -1)).transpose(1, 2)

    def forward(self, embeddings: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Features that the output head reads, (batch, length, hidden).

        Args:
            embeddings: of the tokens, (batch, length, hidden).
            keys: of the target's last layer, rotated, (batch, kv heads, length, size).
            values: likewise.
            seen: which of the target's keys a token may see, (length, length).
        """
        attend = nn.functional.scaled_dot_product_attention
        normed = self._norm("layers.0.input_layernorm", embeddings)
        q, k, v = (self._heads(self._linear(f"self_attn.{name}", normed), heads) for name, heads in
                   (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)))
        mixed = attend(rotated(q), rotated(k), v, is_causal=True, enable_gqa=True)
        states = embeddings + self._linear("self_attn.o", mixed.transpose(1, 2).flatten(2))
        q = rotated(self._heads(self._linear("cross_attn.q", states), self.heads))
        mixed = attend(q, keys.to(q.dtype), values.to(q.dtype), attn_mask=seen, enable_gqa=True)
        states = states + self._linear("cross_attn.o", mixed.transpose(1, 2).flatten(2))
        normed = self._norm("layers.0.post_attention_layernorm", states)
        gate = nn.functional.silu(self._linear("mlp.gate", normed))
        inner = self._linear("mlp.down", gate * self._linear("mlp.up", normed))
        return self._norm("norm", states + inner)


def visible(length: int, block: int, offset: int) -> Tensor:
    """True where a token may see the target's key: in an earlier block.

    The first block has none before it and sees what came before each token.
    """
    places = torch.arange(length)
    blocks = (places + offset) // block
    earlier = blocks[:, None] > blocks[None, :]
    first = (blocks == 0)[:, None] & (places[:, None] >= places[None, :])
    return earlier | first


def main() -> None:
    args = arguments(__doc__.split("\n")[0], "model.safetensors", lr=5e-3)
    chats, frequent = chosen_chats(args)
    target = load_target(torch.bfloat16)[0].requires_grad_(False)
    head, draft = target.lm_head.weight.detach(), GlideDraft(target)
    size, kv_heads = target.config.hidden_size, target.config.num_key_value_heads

    def compute(some: list[Chat]) -> Tensor:
        output = target.model(padded([c.ids for c in some]), use_cache=True)
        last = output.past_key_values.layers[-1]
        parts = (t.transpose(1, 2).flatten(2) for t in (last.keys, last.values))
        return torch.cat((output.last_hidden_state, *parts), dim=-1)

    width = size + 2 * kv_heads * size // target.config.num_attention_heads
    kept = KeptStates(compute, width, chats, args.work / "states.f16")

    def features(batch: list[Chat], block: int, offset: int) -> tuple[Tensor, Tensor]:
        """Predicted and the target's, where they tell the tokens of the answers."""
        states, ids = kept.of(batch), padded([c.ids for c in batch])
        wanted, keys, values = states.split((size, *[(width - size) // 2] * 2), dim=-1)
        keys, values = (t.unflatten(-1, (kv_heads, -1)).transpose(1, 2) for t in (keys, values))
        with torch.autocast("cpu", torch.bfloat16):
            predicted = draft(head[ids].float(), keys, values,
                              visible(ids.shape[1], block, offset))
        spans = [slice(c.start - 1, len(c.ids) - 1) for c in batch]
        return (torch.cat([p[s] for p, s in zip(predicted, spans, strict=True)]),
                torch.cat([w[s] for w, s in zip(wanted, spans, strict=True)]))

    def loss(batch: list[Chat]) -> tuple[Tensor, str]:
        block = random.choice(BLOCKS)
        predicted, wanted = features(batch, block, random.randrange(block))
        entropy = cross_entropy(predicted, wanted, head, frequent)
        return entropy, f"token {entropy.item():.3f}"

    @torch.no_grad()
    def agreement() -> float:
        return float(torch.cat([same_top_token(*features([chat], 5, 0), head)
                                for chat in chats[:HELD_OUT]]).mean())

    train_for(args, draft.weights, chats[HELD_OUT:], loss, agreement)


if __name__ == "__main__":
    main()

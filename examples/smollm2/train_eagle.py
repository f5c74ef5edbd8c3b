"""Train an EAGLE-1/2 head for the embedded target on text that the target wrote.

    python examples/smollm2/make_text.py text.jsonl
    python examples/smollm2/train_eagle.py text.jsonl --work work/ --minutes 60

The head is one Llama layer over [embedding of the next token; target's feature], which
predicts the next feature, a feature being the target's hidden state that its output head
reads. The recipe is that of EAGLE (arXiv 2401.15077, section 4.2): smooth L1 between the
features plus cross-entropy between the distributions that the target's output head makes of
them, with uniform noise on the features that go in. Differences, for a training of an hour:
the cross-entropy is over a sample of the vocabulary and its weight is 1 where theirs is 0.1,
the first layer begins with both inputs at one scale, and matrices are trained by Muon
(torch 2.9 or later). Resumes.
"""

from __future__ import annotations

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
from transformers import LlamaConfig, LlamaModel

HELD_OUT = 60
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
        layers = {f"layers.{n}": p for n, p in self.body.layers.named_parameters()}
        return {"fc.weight": self.fc.weight, "fc.bias": self.fc.bias, **layers}


def predict(head: EagleHead, embedding: Tensor, chats: list[Chat], features: Tensor) -> Tensor:
    """Predicted features at the tokens of the answers, (answers, hidden)."""
    ids = padded([c.ids for c in chats])
    # Row i predicts the feature at position i + 1.
    return answers(head(embedding[ids[:, 1:]].float(), features[:, :-1]), chats, shift=1)


def answers(states: Tensor, chats: list[Chat], shift: int) -> Tensor:
    """The rows at the tokens of the answers, each of which tells the token after it."""
    return torch.cat([s[c.start - shift : len(c.ids) - shift]
                      for s, c in zip(states, chats, strict=True)])


def main() -> None:
    args = arguments(__doc__.split("\n")[0], "model.safetensors", lr=1.5e-3)
    chats, frequent = chosen_chats(args)
    target = load_target(torch.bfloat16)[0].requires_grad_(False)
    weights, head = target.lm_head.weight.detach(), EagleHead(target)
    kept = KeptStates(
        lambda some: target.model(padded([c.ids for c in some]), use_cache=False)[0],
        target.config.hidden_size, chats, args.work / "features.f16")

    def loss(batch: list[Chat]) -> tuple[Tensor, str]:
        features = kept.of(batch)
        noise = (torch.rand_like(features) - 0.5) * NOISE / features.shape[1]
        with torch.autocast("cpu", torch.bfloat16):
            predicted = predict(head, weights, batch, features + noise)
        wanted = answers(features, batch, shift=0)
        regression = nn.functional.smooth_l1_loss(predicted.float(), wanted)
        entropy = cross_entropy(predicted, wanted, weights, frequent)
        return regression + entropy, f"feature {regression.item():.3f} token {entropy.item():.3f}"

    @torch.no_grad()
    def agreement() -> float:
        hits = []
        for chat in chats[:HELD_OUT]:
            features = kept.of([chat])
            with torch.autocast("cpu", torch.bfloat16):
                predicted = predict(head, weights, [chat], features)
            hits.append(same_top_token(predicted, answers(features, [chat], shift=0), weights))
        return float(torch.cat(hits).mean())

    train_for(args, head.tensors(), chats[HELD_OUT:], loss, agreement)


if __name__ == "__main__":
    main()

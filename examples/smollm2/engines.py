"""What writes the training text: the target run by vLLM, or by transformers.

Each engine takes prompts as ids and a temperature for each, and gives what the target wrote
with its TOP most probable tokens at each position, before temperature.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pair import load_target, target_source

TOP = 20


@dataclass
class Answer:
    """What the model wrote: ids (n,), and its most probable tokens, each (n, TOP)."""

    ids: list[int]
    top: np.ndarray
    logp: np.ndarray

    def as_json(self) -> dict[str, Any]:
        """The three fields of a line."""
        return {"ids": self.ids, "top": _base64(self.top, np.uint16),
                "logp": _base64(self.logp, np.float16)}


def _base64(array: np.ndarray, dtype: Any) -> str:
    return base64.b64encode(array.astype(dtype).tobytes()).decode()


Engine = Callable[[list[list[int]], list[float]], list[Answer]]


def vllm_engine(max_new_tokens: int) -> Engine:
    """Generate with vLLM in bfloat16."""
    from vllm import LLM, SamplingParams

    llm = LLM(target_source(), dtype="bfloat16", max_model_len=2048, max_num_seqs=128)

    def generate(prompts: list[list[int]], temperatures: list[float]) -> list[Answer]:
        params = [
            SamplingParams(temperature=t, max_tokens=max_new_tokens, logprobs=TOP,
                           flat_logprobs=True, detokenize=False)
            for t in temperatures
        ]
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [answer(o.outputs[0]) for o in outputs]

    def answer(output: Any) -> Answer:
        ids, flat = list(output.token_ids), output.logprobs
        # Each position: the written token, then the TOP most probable ones.
        at = np.array(flat.start_indices)[:, None] + 1 + np.arange(TOP)
        return Answer(ids, np.array(flat.token_ids)[at], np.array(flat.logprobs)[at])

    return generate


def transformers_engine(max_new_tokens: int) -> Engine:
    """Generate with transformers, batches of like temperature, left-padded."""
    import torch

    model, tokenizer = load_target()
    tokenizer.padding_side = "left"

    def batch(prompts: list[list[int]], temperature: float) -> list[Answer]:
        inputs = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
        sampling: dict[str, Any] = (
            {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature
            else {"do_sample": False}
        )
        tops: list[Any] = []

        def record(_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            tops.append(scores.float().log_softmax(-1).topk(TOP))
            return scores

        out = model.generate(**inputs, max_new_tokens=max_new_tokens, logits_processor=[record],
                             **sampling)
        rows = out[:, inputs["input_ids"].shape[1]:].tolist()
        top = torch.stack([t.indices for t in tops], 1).numpy()
        logp = torch.stack([t.values for t in tops], 1).numpy()
        end = tokenizer.eos_token_id
        lengths = [row.index(end) + 1 if end in row else len(row) for row in rows]
        return [Answer(row[:n], top[i, :n], logp[i, :n])
                for i, (row, n) in enumerate(zip(rows, lengths, strict=True))]

    def generate(prompts: list[list[int]], temperatures: list[float]) -> list[Answer]:
        done: dict[int, Answer] = {}
        for temperature in sorted(set(temperatures)):
            at = [i for i, t in enumerate(temperatures) if t == temperature]
            done |= dict(zip(at, batch([prompts[i] for i in at], temperature), strict=True))
        return [done[i] for i in range(len(prompts))]

    return generate

"""Have the target write text to distil a draft on: chats in the style of the six tasks.

    python examples/smollm2/make_text.py text.jsonl --tokens 1000000

Prompts are templates over ``topics.txt``; passages to summarize, translate or answer
from are answers the model gave earlier, and those of ``--prompts``, a JSONL file of
``{"kind": ..., "text": ...}``: kind ``passage`` and ``foreign`` are built upon by the
templates, any other is a prompt as it stands. People's own text matters: a draft that only
saw the model's is much worse at theirs.

One JSON line a chat is appended as soon as its batch is done: ``prompt_ids`` (chat template
applied), ``ids`` (what the model wrote) and the model's 20 most probable tokens at
each of them with their log probabilities (``top``, ``logp``: base64 of uint16 and float16,
before temperature). A second start goes on where the first stopped.

vLLM is used where it is installed (about 370 tokens/s on two cores, passages of several
hundred tokens included), else batched ``generate``, which is slower.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from engines import transformers_engine, vllm_engine
from pair import target_source

TOPICS = Path(__file__).with_name("topics.txt").read_text().split("\n")[:-1]
LANGUAGES = ["French", "German", "Spanish", "Italian", "Portuguese"]
NAMES = ["Anna", "Ben", "Carla", "David", "Elif", "Farid", "Grace", "Hugo", "Ines", "Jonas"]
THINGS = ["apples", "pencils", "books", "marbles", "tickets", "cookies", "stamps", "shells"]

CONVERSATION = [
    "Write a short story about {t}.", "Write an email to a friend about {t}.",
    "Explain {t} to a ten-year-old.", "What are the pros and cons of {t}?",
    "Give me five tips about {t}.", "Write a blog post about {t}.",
    "Write a short poem about {t}.", "Compare {t} and {u}.",
    "Write a dialogue between two people who talk about {t}.",
    "Plan a lesson about {t} for beginners.", "Describe {t} vividly in one paragraph.",
    "What would the world look like without {t}?", "Make an outline for an essay on {t}.",
    "Write a product description that has to do with {t}.", "Tell me a fun fact about {t}.",
    "Write a Python function that has to do with {t}.", "Write a speech about {t}.",
    "How did {t} change over time?", "List ten words that have to do with {t}.",
]
QUESTIONS = [
    "What is the most important thing to know about {t}?", "Why do people care about {t}?",
    "Who first studied {t}?", "When did {t} become important?", "How does {t} work?",
    "What is the difference between {t} and {u}?", "Where can one learn about {t}?",
    "What is {t}?", "Is {t} related to {u}?", "What causes problems with {t}?",
    "Name three examples of {t}.", "What are the main parts of {t}?",
]
FOLLOW_UPS = [
    "Can you make that shorter?", "Give me an example.", "Rewrite it in a formal tone.",
    "Why is that?", "Now explain it as if I were five.", "What else should I know?",
    "Turn your answer into a list.", "Can you say more about the last point?",
    "Rewrite your answer as a poem.", "What are common mistakes here?",
    "Summarize your answer in one sentence.", "Now write the opposite point of view.",
]
SUMMARIES = [
    "Summarize the following text:\n\n{p}", "{p}\n\nTL;DR:", "Summarize: {p}",
    "Give a one-sentence summary of this passage.\n\n{p}",
    "What are the key points of this article?\n\n{p}",
    "Write a brief summary of the text below.\n\n{p}\n\nSummary:",
]
TRANSLATIONS = [
    "Translate to {l}: {s}", "Translate the following sentence into {l}.\n\n{s}",
    "How do you say this in {l}? {s}", "Translate this {l} text into English: {f}",
    "Translate {l} to English: {f}",
]
RETRIEVALS = [
    "Answer the question with the help of the passages.\n\nPassage 1: {p}\n\n"
    "Passage 2: {q}\n\nQuestion: {k}",
    "Context: {p}\n\nQuestion: {k}\nAnswer:",
    "Use the documents below to answer.\n\n[1] {p}\n[2] {q}\n\n{k}",
]


def word_problem(rng: random.Random) -> str:
    """A small arithmetic word problem with random names and numbers."""
    name, other = rng.sample(NAMES, 2)
    thing, a, b, c = rng.choice(THINGS), rng.randint(3, 60), rng.randint(2, 20), rng.randint(2, 9)
    return rng.choice([
        f"{name} has {a} {thing}. {other} gives {name} {b} more. How many does {name} have now?",
        f"A box holds {b} {thing}. How many {thing} are in {c} boxes?",
        f"{name} buys {c} {thing} for ${b} each and pays with a ${a + b * c} bill. "
        "How much change is given?",
        f"A train travels {a} miles an hour for {c} hours. How far does it go?",
        f"{name} has {a * c} {thing} and shares them equally among {c} friends. "
        "How many does each friend get?",
        f"What is {c * 10}% of {a * 10}?", f"Solve for x: {c}x + {b} = {c * a + b}.",
        f"What is {a} times {b}? Show your steps.",
        f"The sides of a rectangle are {a} cm and {b} cm. What are its area and perimeter?",
        f"{name} reads {b} pages a day. How long does a book of {b * c} pages take?",
        f"{name} is {b} years older than {other}, who is {a}. How old is {name} in {c} years?",
        f"A shop sells {a} {thing} on Monday and {b} more than that on Tuesday. "
        f"How many did it sell in total? Explain step by step.",
    ])


def sentence(text: str, rng: random.Random) -> str:
    """One sentence of a passage, at most 200 characters."""
    found = [s.strip() for s in text.replace("\n", " ").split(". ") if 20 < len(s) < 200]
    return rng.choice(found) + "." if found else text[:200]


Chat = list[dict[str, str]]


class PromptMaker:
    """Draws chats; ``passages`` and ``foreign`` are earlier answers to build upon."""

    def __init__(self, seed: int, given: list[dict[str, str]]) -> None:
        self.rng = random.Random(seed)
        self.passages = [g["text"] for g in given if g["kind"] == "passage"]
        self.foreign = [g["text"] for g in given if g["kind"] == "foreign"]
        self.prompts = [g for g in given if g["kind"] not in {"passage", "foreign"}]
        self.rng.shuffle(self.prompts)
        self.chats: list[Chat] = []

    def __iter__(self) -> Iterator[tuple[str, Chat]]:
        kinds: dict[str, tuple[int, Callable[[], Chat]]] = {
            "conversation": (4, self._opening), "follow-up": (3, self._follow_up),
            "question": (3, lambda: self._fill(QUESTIONS)),
            "math": (3, lambda: _user(word_problem(self.rng))),
            "summary": (3, lambda: self._fill(SUMMARIES)),
            "translation": (5, lambda: self._fill(TRANSLATIONS)),
            "retrieval": (3, lambda: self._fill(RETRIEVALS)),
        }
        names, weights = list(kinds), [w for w, _ in kinds.values()]
        while True:
            if self.prompts and self.rng.random() < 0.6:
                given = self.prompts.pop()
                yield given["kind"], _user(given["text"])
                continue
            name = self.rng.choices(names, weights)[0]
            if not self.passages and name in {"follow-up", "summary", "translation", "retrieval"}:
                name = "conversation"  # nothing to build upon yet
            yield name, kinds[name][1]()

    def learn(self, kind: str, chat: Chat, answer: str) -> None:
        """Keep an answer as a passage for later prompts."""
        if kind == "translation":
            self.foreign.append(answer[:200])
        elif len(answer) > 200:
            self.passages.append(answer)
        if len(chat) == 1:
            self.chats.append([*chat, {"role": "assistant", "content": answer}])

    def _opening(self) -> Chat:
        return self._fill(CONVERSATION)

    def _follow_up(self) -> Chat:
        if not self.chats:  # nothing to go on from yet
            return self._opening()
        return self.rng.choice(self.chats) + _user(self.rng.choice(FOLLOW_UPS))

    def _fill(self, templates: list[str]) -> Chat:
        rng, passages = self.rng, self.passages or [""]
        topic, other = rng.sample(TOPICS, 2)
        text = rng.choice(passages)
        return _user(rng.choice(templates).format(
            t=topic, u=other, l=rng.choice(LANGUAGES), p=text[:1200], q=rng.choice(passages)[:800],
            s=sentence(text, rng), f=rng.choice(self.foreign or [text[:200]]),
            k=rng.choice([sentence(text, rng).rstrip(".") + ", is that so?",
                          f"What does the text say about {topic}?",
                          "What is the main idea?", "Why does it matter?"]),
        ))


def _user(content: str) -> Chat:
    return [{"role": "user", "content": content}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="tokens to write in all")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="per chat")
    parser.add_argument("--batch", type=int, default=256, help="chats between two writes")
    parser.add_argument("--greedy", type=float, default=0.6, help="share at temperature 0")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[], help="JSONL, see above")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target_source())
    found = args.out.read_text() if args.out.exists() else ""
    found = found[: found.rfind("\n") + 1]  # without a last line that was cut off
    args.out.write_text(found)
    written = sum(len(json.loads(line)["ids"]) for line in found.splitlines())
    # A resumed run must not draw the same prompts again.
    given = [json.loads(line) for path in args.prompts for line in path.open()]
    maker = PromptMaker(args.seed + found.count("\n"), given)
    has_vllm = importlib.util.find_spec("vllm") is not None
    generate = (vllm_engine if has_vllm else transformers_engine)(args.max_new_tokens)
    prompts = iter(maker)
    with args.out.open("a") as file:
        while written < args.tokens:
            drawn = [next(prompts) for _ in range(args.batch)]
            ids = [list(tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_dict=False)) for _, chat in drawn]
            kept = [i for i, p in enumerate(ids) if len(p) <= 1024]
            temperatures = [
                0.0 if maker.rng.random() < args.greedy else maker.rng.choice([0.7, 1.0])
                for _ in kept
            ]
            answers = generate([ids[i] for i in kept], temperatures)
            for i, temperature, answer in zip(kept, temperatures, answers, strict=True):
                kind, chat = drawn[i]
                text = tokenizer.decode(answer.ids, skip_special_tokens=True)
                maker.learn(kind, chat, text)
                file.write(json.dumps({"kind": kind, "temperature": temperature,
                                       "prompt_ids": ids[i], **answer.as_json()}) + "\n")
                written += len(answer.ids)
            file.flush()
            print(f"{written} of {args.tokens} tokens", flush=True)


if __name__ == "__main__":
    main()

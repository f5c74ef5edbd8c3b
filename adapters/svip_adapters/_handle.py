"""What ``attach`` returns, the same in every adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from svip_policy import (
    Decision,
    DraftStep,
    LengthPolicy,
    PolicyDriver,
    Round,
    Summary,
    provenance,
    resolve,
)
from svip_policy.errors import UnsupportedError
from svip_policy.trace import Recorder, TraceFile

# Per thread and per asyncio task: which handle uses which other policy for now.
_OVERRIDES: ContextVar[tuple[tuple[Handle, LengthPolicy], ...]] = ContextVar(
    "svip_overrides", default=()
)


@dataclass(frozen=True)
class Watched:
    """In place of a policy: the framework's own rule decides, and is only recorded."""

    def observe(self, step: DraftStep) -> Decision:
        """Not asked."""
        return Decision.CONTINUE

    def verified(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""

    def fresh(self) -> Watched:
        """Itself."""
        return self


class Handle:
    """An attached policy: detach it, exchange it for a while, ask what happened.

    A context manager that detaches on leaving (the outermost block, where several nest).

    Attributes:
        generations: one driver a generation since attaching or :meth:`reset`, with the
            record of its rounds.
        conditions: what the adapter knows of models, device and dtype, for a trace's header.
    """

    def __init__(self, policy: LengthPolicy, on_detach: Callable[[], None],
                 target_logits: bool = False) -> None:
        self._policy, self._target_logits = policy, target_logits
        self._on_detach: Callable[[], None] | None = on_detach
        self._entered = 0
        self.generations: list[PolicyDriver] = []
        self.conditions: dict[str, Any] = {}
        self._trace: _Recording | None = None

    @property
    def policy(self) -> LengthPolicy:
        """The policy in force in this thread or task."""
        return next((p for h, p in reversed(_OVERRIDES.get()) if h is self), self._policy)

    @property
    def attached(self) -> bool:
        """Whether the policy is still attached."""
        return self._on_detach is not None

    def new_generation(self) -> PolicyDriver:
        """A driver with a fresh policy; adapters call this when a generation starts."""
        driver = PolicyDriver(self.policy.fresh())
        if self._trace is not None:
            driver.record = self._trace.next(driver.policy, self.conditions)
        self.generations.append(driver)
        return driver

    def record(self, path: Path | str, *, distributions: bool = False, **conditions: Any) -> None:
        """Append each round of the generations that begin from now on to a trace.

        Args:
            path: of the file; one that was begun under the same conditions is gone on with.
            distributions: also compare the draft's and the target's distribution of each
                drafted token, where the framework hands the target's out.
            conditions: for its first line, beside what is found out: ``models={"draft": ...}``
                where the adapter cannot know a name, ``prompts``, and what else matters.

        Raises:
            UnsupportedError: the framework does not hand out the target's distributions.
            TraceError: as the first generation begins, where ``path`` is something else.
        """
        if distributions and not self._target_logits:
            raise UnsupportedError("this framework's verification does not hand out the target's "
                                   "logits: record without distributions")
        self._trace = _Recording(Path(path), distributions,
                                 {"arms": [repr(self.policy)], **conditions})

    @contextmanager
    def use(self, policy: LengthPolicy | str) -> Iterator[Handle]:
        """Another policy inside a ``with`` block, for this thread or task only."""
        token = _OVERRIDES.set((*_OVERRIDES.get(), (self, resolve(policy))))
        try:
            yield self
        finally:
            _OVERRIDES.reset(token)

    @property
    def rounds(self) -> list[Round]:
        """All rounds since attaching or :meth:`reset`, in order."""
        return [r for driver in self.generations for r in driver.rounds]

    @property
    def degenerate(self) -> int:
        """How many drafted tokens had degenerate logits."""
        return sum(driver.degenerate for driver in self.generations)

    def summary(self) -> Summary:
        """Totals over :attr:`rounds`."""
        return Summary.of(self.rounds)

    def reset(self) -> None:
        """Forget what was recorded so far; a server should, now and then."""
        self.generations.clear()

    def detach(self) -> None:
        """Leave the model as it was before; a second call does nothing."""
        detach, self._on_detach = self._on_detach, None
        if detach is not None:
            detach()

    def __enter__(self) -> Handle:
        self._entered += 1
        return self

    def __exit__(self, *exc: Any) -> None:
        # Attaching an equal policy gives the same handle: the outermost block detaches.
        self._entered -= 1
        if not self._entered:
            self.detach()


def conditions(**models: Any) -> dict[str, Any]:
    """What a trace's header says of models, by their roles; the first tells dtype and device."""
    first = next(iter(models.values()))
    known = {"models": {role: _name(model) for role, model in models.items()},
             "dtype": str(getattr(first, "dtype", "unknown")).removeprefix("torch.")}
    device = getattr(first, "device", None)
    if device is None or device.type == "cpu":
        return known  # and the trace tells of the machine
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return known | {"device": f"{device} {name}".strip()}


def _name(model: Any) -> str:
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    return path or type(model).__qualname__


@dataclass
class _Recording:
    """A trace that is begun when the first generation is, which is when the draft is known."""

    path: Path
    distributions: bool
    conditions: dict[str, Any]
    file: TraceFile | None = None
    generations: int = 0

    def next(self, policy: LengthPolicy, known: dict[str, Any]) -> Recorder:
        """The recorder of the next generation."""
        decoding = known.get("decoding")
        if self.file is None:
            models = {**known.get("models", {}), **self.conditions.get("models", {})}
            known = {name: value for name, value in known.items() if name != "decoding"}
            header = provenance.collect(**{**known, **self.conditions, "models": models,
                                           "distributions": self.distributions})
            self.file = TraceFile(self.path, "rounds", header)
            earlier = [entry["generation"] for entry in self.file.entries]
            self.generations = max(earlier, default=-1) + 1
        self.generations += 1
        return Recorder(self.file, repr(policy), self.generations - 1, decoding,
                        self.distributions)

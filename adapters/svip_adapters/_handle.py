"""What ``attach`` returns, the same in every adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from svip_policy import Decision, DraftStep, LengthPolicy, PolicyDriver, Round, Summary, resolve

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
    """

    def __init__(self, policy: LengthPolicy, on_detach: Callable[[], None]) -> None:
        self._policy = policy
        self._on_detach: Callable[[], None] | None = on_detach
        self._entered = 0
        self.generations: list[PolicyDriver] = []

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
        self.generations.append(driver)
        return driver

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

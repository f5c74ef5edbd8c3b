"""The handle of a vLLM engine: totals and metrics, where other adapters keep every round."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

from svip_policy import LengthPolicy, PolicyDriver, Summary

from ._handle import Handle

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


class EngineHandle(Handle):
    """The handle of an engine, which may run for weeks: totals, no rounds.

    Attributes:
        lengths: how often a draft of each length was verified, since attaching or :meth:`reset`.
        failed: how many requests go on without drafting, since their policy raised.
    """

    def __init__(self, policy: LengthPolicy, on_detach: Callable[[], None],
                 target_logits: bool = False) -> None:
        super().__init__(policy, on_detach, target_logits)
        self.reset()

    def reset(self) -> None:
        """Count from 0 again."""
        super().reset()
        self.lengths: Counter[int] = Counter()
        self.failed = self._accepted = self._degenerate = 0
        self._seconds = (0.0, 0.0, 0.0)

    def new_generation(self) -> PolicyDriver:
        """A driver with a fresh policy for a request; the request alone keeps it."""
        driver = super().new_generation()
        self.generations.pop()
        return driver

    @property
    def degenerate(self) -> int:
        """How many drafted tokens had degenerate logits, as far as they were looked at one by
        one: policies that answer for a whole batch stop there, and do not count."""
        return self._degenerate

    def count(self, drafted: int, accepted: int, degenerate: int = 0, shown: bool = True) -> None:
        """Count a round of one request.

        Args:
            drafted: tokens of it that were verified.
            accepted: of these.
            degenerate: tokens with degenerate logits.
            shown: whether this process is the one that counts for Prometheus.
        """
        self.lengths[drafted] += 1
        self._accepted += accepted
        self._degenerate += degenerate
        metrics = _metrics() if shown else None
        if metrics is not None:
            tokens, right, lengths = (metric.labels(repr(self.policy)) for metric in metrics)
            tokens.inc(drafted)
            right.inc(accepted)
            lengths.observe(drafted)

    def spent(self, draft: float = 0.0, verify: float = 0.0, policy: float = 0.0) -> None:
        """Add seconds of the whole batch."""
        before = self._seconds
        self._seconds = before[0] + draft, before[1] + verify, before[2] + policy

    def summary(self) -> Summary:
        """Totals since attaching or :meth:`reset`: rounds and tokens of all requests, seconds of
        the batches that they were in.

        Verification is the time from a draft until its outcome is known. On an accelerator a
        policy's time has the wait for the draft's pass that it decides upon.
        """
        drafted = sum(length * times for length, times in self.lengths.items())
        draft, verify, policy = self._seconds
        return Summary(self.lengths.total(), drafted, self._accepted, draft, verify, policy,
                       nodes=drafted, levels=drafted)


@functools.cache
def _metrics() -> tuple[Any, Any, Any] | None:
    """In the default registry, which is the one that vLLM's server shows; None where
    prometheus_client is not installed."""
    try:
        from prometheus_client import Counter as Total
        from prometheus_client import Histogram
    except ImportError:
        return None
    return (
        Total("svip_draft_tokens", "Drafted tokens that were verified", ["policy"]),
        Total("svip_accepted_tokens", "Drafted tokens that were accepted", ["policy"]),
        Histogram("svip_draft_length", "Tokens drafted a round and request", ["policy"],
                  buckets=LENGTHS),
    )

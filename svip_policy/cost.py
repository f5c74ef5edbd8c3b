"""What drafting and verifying cost, as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .errors import ParameterError


@dataclass(frozen=True)
class CostModel:
    """Seconds of a draft step, and of verifying n drafted tokens, at some context lengths.

    A table, not a formula: verification is not linear in n on any machine. Between context
    lengths it is interpolated, beyond them the nearest one counts.

    Attributes:
        lengths: context lengths, ascending, in tokens.
        draft: of one draft step at each of them, seconds.
        verify: at each of them, of a target pass that verifies 0, 1, ... n drafted tokens and
            gives one token more; seconds.

    Raises:
        ParameterError: the shapes do not fit, or a figure is not above 0 (at least 0 for
            ``draft``).
    """

    lengths: tuple[int, ...]
    draft: tuple[float, ...]
    verify: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        widths = {len(row) for row in self.verify}
        if not (len(self.lengths) == len(self.draft) == len(self.verify) > 0 and len(widths) == 1):
            raise ParameterError(
                f"lengths, draft and verify have {len(self.lengths)}, {len(self.draft)} and "
                f"{len(self.verify)} entries, and verify rows of {sorted(widths)}: give one of "
                "each for each context length, all rows alike"
            )
        if not np.all(np.diff(self.lengths) > 0):
            raise ParameterError(f"lengths are {self.lengths}; give them ascending")
        if not (min(self.draft) >= 0 and np.min(self.verify) > 0):
            raise ParameterError("a cost is not above 0; give seconds")

    @classmethod
    def flat(cls, draft: float, verify: tuple[float, ...]) -> CostModel:
        """One that is the same at any context length."""
        return cls((0,), (draft,), (tuple(verify),))

    @classmethod
    def measure(
        cls, target: Any, draft: Any, *, lengths: Sequence[int] = (64, 256, 1024),
        longest: int = 12, repeats: int = 9,
    ) -> CostModel:
        """Measure two transformers models on the device they are on.

        See :func:`svip_adapters.hf_costs.measure`, whose arguments these are.
        """
        from svip_adapters.hf_costs import measure  # the core imports no framework by itself

        return measure(target, draft, lengths=lengths, longest=longest, repeats=repeats)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> CostModel:
        """From what :meth:`as_dict` gave."""
        return cls(tuple(entry["lengths"]), tuple(entry["draft"]),
                   tuple(tuple(row) for row in entry["verify"]))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @property
    def longest(self) -> int:
        """The most drafted tokens whose verification was measured."""
        return len(self.verify[0]) - 1

    def draft_seconds(self, drafted: int, length: int) -> float:
        """Of ``drafted`` steps after ``length`` tokens."""
        return drafted * float(np.interp(length, self.lengths, self.draft))

    def verify_seconds(self, drafted: int, length: int) -> float:
        """Of verifying ``drafted`` tokens after ``length`` tokens.

        Raises:
            ParameterError: more than was measured.
        """
        if drafted > self.longest:
            raise ParameterError(f"verification of {drafted} drafted tokens was not measured, at "
                                 f"most of {self.longest}: measure longer ones, or cap the policy")
        return float(np.interp(length, self.lengths, [row[drafted] for row in self.verify]))

    def rounds_seconds(self, most: int, length: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Of whole rounds with 0, 1, ... ``most`` drafted tokens, (most + 1,)."""
        self.verify_seconds(most, length)
        table = np.asarray(self.verify)[:, : most + 1]
        verify = np.array([np.interp(length, self.lengths, column) for column in table.T])
        return np.asarray(verify + self.draft_seconds(1, length) * np.arange(most + 1))

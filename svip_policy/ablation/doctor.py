"""What is installed, which upstream functions are known, what passes cost."""

from __future__ import annotations

from tabulate import tabulate

from .. import provenance
from ..cost import CostModel


def findings() -> str:
    """Versions, and each adapter's verdict on its upstream."""
    from svip_adapters import _fingerprint

    rows = list(provenance.versions().items())
    text = str(tabulate(rows, ["package", "version"], "pipe", disable_numparse=True))
    return "\n".join([text, "", *(f"- {line}" for line in _fingerprint.survey())])


def cost_table(cost: CostModel) -> str:
    """Milliseconds of a draft step and of verifying some numbers of drafted tokens."""
    shown = [n for n in (0, 1, 2, 4, 8, 12, 20, 40) if n <= cost.longest]
    rows = [[length, f"{1000 * draft:.2f}", *(f"{1000 * verify[n]:.1f}" for n in shown)]
            for length, draft, verify in zip(cost.lengths, cost.draft, cost.verify, strict=True)]
    return str(tabulate(rows, ["context", "draft step, ms",
                               *(f"verify {n}, ms" for n in shown)], "pipe",
                        disable_numparse=True))

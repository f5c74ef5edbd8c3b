"""What attaching to EAGLE asks for; no upstream is needed here."""

import subprocess
import sys
from importlib import metadata

import eagle_models
import pytest
import torch
from svip_adapters import attach, eagle

from svip_policy.errors import ParameterError, UnsupportedError


class NoEagle(torch.nn.Module):
    """Has nothing that EAGLE has."""


def test_importing_needs_neither_eagle_nor_torch():
    code = ("import sys, svip_adapters.eagle; "
            "assert not {'torch', 'transformers', 'eagle'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_something_else_is_told_what_was_expected():
    with pytest.raises(TypeError, match="NoEagle; give an EaModel of EAGLE, whose ea_layer has"):
        eagle.attach(NoEagle(), "svip")
    with pytest.raises(TypeError, match="an EaModel of EAGLE"):
        attach(NoEagle(), "svip")


def stand_in():
    """Looks like an EaModel to the checks that come before the source is looked at."""
    model = NoEagle()
    model.ea_layer = NoEagle()
    model.ea_layer.topK_genrate = model.ea_layer.reset_kv = print
    return model


@pytest.mark.parametrize("options, message", [
    ({"max_depth": 0}, "max_depth is 0; give the most levels, at least 1"),
    ({"max_depth": True}, "max_depth is True"),
    ({"max_depth": 2.0}, "max_depth is 2.0"),
    ({"reduce": "mean"}, "reduce is 'mean'; give 'best' or 'weighted'"),
])
def test_options_out_of_range(options, message):
    with pytest.raises(ParameterError, match=message):
        eagle.attach(stand_in(), "svip", **options)


@pytest.mark.parametrize("version", ["5.24.0", "3.0.2"])
def test_other_transformers_names_both_sides(monkeypatch, version):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    expected = f"EAGLE .* runs with transformers 4, tested with 4.53.3; installed is {version}"
    with pytest.raises(UnsupportedError, match=expected):
        eagle.attach(stand_in(), "svip")
    with pytest.raises(UnsupportedError, match=expected):
        eagle.check_versions()


@pytest.mark.skipif(metadata.version("transformers").startswith("4"),
                    reason="about what EAGLE does under transformers 5")
@pytest.mark.skipif(eagle_models.absent(eagle_models.STATIC) != "",
                    reason=eagle_models.absent(eagle_models.STATIC))
def test_what_the_version_error_is_there_for(tmp_path):
    """EAGLE's own failure with transformers 5, which says nothing of versions."""
    with pytest.raises(KeyError):
        eagle_models.load(eagle_models.STATIC, tmp_path)
    with pytest.raises(UnsupportedError):
        eagle.check_versions()

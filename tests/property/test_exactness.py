"""The exactness contract of protocol.py, proved by enumeration.

The output distribution of speculative decoding is computed exactly, over all tokens that
may be drafted and all outcomes of verification, for random targets, drafts and stopping
rules. A rule is an arbitrary function of the tokens drafted so far in the round: their
distributions are functions of them.
"""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svip_policy import POLICIES, Heuristic, PolicyDriver, RoundStart

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


def policy_drafts(prefix, draft, policy, drafted=(), chance=1.0):
    """As drafts(), with the decision to stop left to a policy in the package's own driver."""
    if drafted:
        driver = PolicyDriver(pickle.loads(policy))
        driver.begin(RoundStart())
        for n, token in enumerate(drafted):
            with np.errstate(divide="ignore"):
                more = driver.observe(np.log(draft[prefix + drafted[:n]]), token)
        if not more or len(drafted) == 4:
            yield drafted, chance, driver
            return
    for token, weight in enumerate(draft[prefix + drafted]):
        if weight:
            yield from policy_drafts(prefix, draft, policy, (*drafted, token), chance * weight)


def policy_output(target, draft, policy, length=LENGTH):
    """As output(); what the policy learned of earlier rounds goes with each prefix."""
    done, open_ = {}, {((), pickle.dumps(policy)): 1.0}
    while open_:
        (prefix, state), mass = open_.popitem()
        for drafted, chance, driver in policy_drafts(prefix, draft, state):
            for tokens, weight in verify(prefix, drafted, target, draft):
                learned = pickle.loads(pickle.dumps(driver.policy))
                learned.verified(len(drafted), len(tokens) - 1)
                text, total = prefix + tokens, mass * chance * weight
                if len(text) >= length:
                    done[text[:length]] = done.get(text[:length], 0.0) + total
                else:
                    key = text, pickle.dumps(learned)
                    open_[key] = open_.get(key, 0.0) + total
    return done


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), peak=st.sampled_from([0.3, 1.0, 5.0]))
def test_every_policy_leaves_the_targets_distribution(name, seed, peak):
    """History too: what is drafted depends on how earlier rounds were verified."""
    target, draft = Language(seed, 3, peak), Language(seed + 1, 3, peak)
    start = Heuristic(1, cap=4) if name == "heuristic" else POLICIES[name]()
    got = policy_output(target, draft, start)
    for text, probability in wanted(target, 3).items():
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

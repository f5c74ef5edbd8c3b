"""A runner and a proposer that only carry the seam of vLLM's adapter, and a policy attached."""

import types
import weakref

import numpy as np
import torch
from svip_adapters._patching import Patch
from svip_adapters._vllm_handle import EngineHandle
from svip_adapters._vllm_rounds import Rounds

from svip_policy import resolve

VOCABULARY = 11
SURE = 12.0


class Model:
    """Logits that are as sure of the token as the script says, for each request and step."""

    def __init__(self, script):
        self.script, self.step = script, 0

    def compute_logits(self, hidden):
        logits = torch.zeros(hidden.shape[0], VOCABULARY)
        for row, sure in zip(range(len(logits)), self.script(self.step), strict=False):
            logits[row, (row + self.step) % VOCABULARY] = SURE if sure else 0.1
        self.step += 1
        return logits


class Proposer:
    """The loop of vLLM's proposer, without a model to speak of."""

    def __init__(self, runner, script):
        self.runner, self.model = runner, Model(script)
        self.passes, self.asked, self._last_draft_probs = 0, [], None
        self._enable_probabilistic_draft_probs = True

    def _sample_from_logits(self, logits, sampling_metadata):
        tokens = logits.argmax(-1)
        if sampling_metadata.all_greedy:
            return tokens, None
        return tokens, logits.div_(50.0).softmax(-1)  # in place, as vLLM does

    def _sample_draft_tokens(self, hidden_states, sampling_metadata):
        raise AssertionError("the adapter does this")

    def propose(self, num_speculative_tokens, sampling_metadata):
        self.model.step, self._last_draft_probs = 0, None
        self.passes += 1
        self.asked.append(num_speculative_tokens)
        count = len(self.runner.input_batch.req_ids)
        hidden = torch.zeros(count, 4)
        if num_speculative_tokens == 0:
            return torch.empty(count, 0, dtype=torch.int64)
        made = [self._sample_draft_tokens(hidden, sampling_metadata)]
        for _ in range(num_speculative_tokens - 1):
            self.passes += 1
            made.append(self._sample_draft_tokens(hidden, sampling_metadata))
        return torch.stack([tokens for tokens, _ in made], dim=1)


class Ids:
    """As vLLM's DraftTokenIds."""

    def __init__(self, req_ids, draft_token_ids):
        self.req_ids, self.draft_token_ids = req_ids, draft_token_ids


class Runner:
    """As vLLM's model runner, as far as the adapter looks."""

    def __init__(self, script, tokens=5):
        self.most, self.sampling = tokens, types.SimpleNamespace(all_greedy=True)
        self.speculative_config = types.SimpleNamespace(disable_padded_drafter_batch=False)
        self.requests, self.fits = {}, True
        self.input_batch = types.SimpleNamespace(req_ids=[], num_tokens_no_spec=np.zeros(8, int))
        self.discard_request_mask = types.SimpleNamespace(np=np.zeros(8, bool))
        self.drafter = Proposer(self, script)
        self.drafted = None

    def _update_states_after_model_execute(self, output_token_ids, scheduler_output):
        """Of hybrid models."""

    def take_draft_token_ids(self):
        return Ids(list(self.input_batch.req_ids), self.drafted.tolist())

    def step(self, accepted=None, preempted=None, submitted=None, finished=()):
        """One step of the engine: what was drafted last is verified, then it drafts anew."""
        ids = self.input_batch.req_ids
        sampled = torch.full((len(ids), self.most + 1), -1)
        for row, count in enumerate(accepted or [0] * len(ids)):
            sampled[row, : count + 1] = 3
        counts = (submitted or self.submitted) if accepted is not None else [0] * len(ids)
        scheduled = types.SimpleNamespace(
            preempted_req_ids=preempted, finished_req_ids=finished,
            scheduled_spec_decode_tokens={
                r: [3] * n for r, n in zip(ids, counts, strict=True) if n})
        # vLLM counts the new tokens only after it has drafted.
        self.input_batch.num_tokens_no_spec[: len(ids)] = [10 * (n + 1) for n in range(len(ids))]
        self._update_states_after_model_execute(sampled, scheduled)
        if self.fits:
            self.drafted = self.drafter.propose(num_speculative_tokens=self.most,
                                                sampling_metadata=self.sampling)
        else:  # the draft model has no room for one of the requests
            self.drafted = torch.zeros(len(ids), self.most)
        found = self.take_draft_token_ids()
        self.submitted = [len(tokens) for tokens in found.draft_token_ids]
        return self.submitted

    def serve(self, *req_ids):
        self.input_batch.req_ids = list(req_ids)
        self.requests = dict.fromkeys(req_ids)


class Group:
    """A tensor parallel group of which this is one rank."""

    def __init__(self, rank=0, size=1, said=None):
        self.rank_in_group, self.world_size, self.said = rank, size, [] if said is None else said

    def broadcast_object(self, decided, src):
        if self.rank_in_group == src:
            self.said.append(decided)
            return decided
        assert decided is None
        return self.said.pop(0)


def attached(policy, script=lambda step: [True] * 8, group=None, **options):
    """A runner with a policy attached, and its handle."""
    runner = Runner(script, **options)
    handle = EngineHandle(resolve(policy), lambda: None)
    rounds = Rounds(handle, weakref.ref(runner), weakref.ref(runner.drafter), group or Group())
    for owner, name, wrapper in ((runner, "_update_states_after_model_execute", rounds.sampled),
                                 (runner, "take_draft_token_ids", rounds.take),
                                 (runner.drafter, "propose", rounds.propose),
                                 (runner.drafter, "_sample_draft_tokens", rounds.sample)):
        Patch(owner, name, wrapper)
    return runner, handle


def until(*lengths):
    """A script: request n is sure of its tokens up to this one, of which it is not."""
    return lambda step: [step + 1 < length for length in lengths]

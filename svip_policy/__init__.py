"""Draft length policies for speculative decoding, independent of any framework."""

from . import errors
from .driver import PolicyDriver
from .policies import POLICIES, SVIP, Constant, Heuristic, PathProbability, parse, resolve
from .protocol import Decision, DraftStep, LengthPolicy, RoundPolicy, RoundStart
from .summary import Round, Summary
from .tree import TreeStep

__version__ = "0.1.0"

__all__ = [
    "POLICIES", "SVIP", "Constant", "Decision", "DraftStep", "Heuristic", "LengthPolicy",
    "PathProbability", "PolicyDriver", "Round", "RoundPolicy", "RoundStart", "Summary", "TreeStep",
    "errors", "parse", "resolve",
]

"""Draft length policies for speculative decoding, independent of any framework."""

from . import errors
from .driver import PolicyDriver
from .policies import (
    POLICIES,
    SVIP,
    AdaEDL,
    AdaptiveConfidence,
    Bandit,
    Confidence,
    Constant,
    DraftVerify,
    GammaTune,
    Heuristic,
    Margin,
    Marginal,
    PathProbability,
    parse,
    resolve,
)
from .protocol import (
    BatchPolicy,
    Decision,
    DraftStep,
    LearningPolicy,
    LengthPolicy,
    RoundPolicy,
    RoundStart,
)
from .summary import Round, Summary
from .tree import TreeStep

__version__ = "0.1.0"

__all__ = [
    "POLICIES", "SVIP", "AdaEDL", "AdaptiveConfidence", "Bandit", "BatchPolicy", "Confidence",
    "Constant", "Decision", "DraftStep", "DraftVerify", "GammaTune", "Heuristic",
    "LearningPolicy", "LengthPolicy", "Margin", "Marginal", "PathProbability", "PolicyDriver",
    "Round", "RoundPolicy", "RoundStart", "Summary", "TreeStep", "errors", "parse", "resolve",
]

"""Errors and warnings of this package; each message says what was given and what to do."""


class SvipError(Exception):
    """Base of every error raised by svip_policy and svip_adapters."""


class ParameterError(SvipError, ValueError):
    """A policy parameter is out of its range or of the wrong type."""


class PolicyTextError(SvipError, ValueError):
    """A policy text such as ``svip(threshold=0.3)`` does not parse."""


class UnsupportedError(SvipError, ValueError):
    """The framework was asked for something that the adapter cannot carry."""


class UnknownUpstreamError(SvipError, RuntimeError):
    """An upstream function that the adapter relies on is not one it was tested with."""


class AlreadyAttachedError(SvipError, RuntimeError):
    """Another policy is attached to this model."""


class TraceError(SvipError, ValueError):
    """A file is no trace, or not the one that is wanted."""


class DivergenceError(SvipError, RuntimeError):
    """Greedy output is not the target's, beyond what rounding explains."""


class DegenerateLogitsWarning(RuntimeWarning):
    """Draft logits hold NaN or +inf, or are -inf throughout; drafting stopped there."""


class MissingDistributionsWarning(RuntimeWarning):
    """A trace was to hold distributions, and the framework does not give the target's."""


class PatchedOverWarning(RuntimeWarning):
    """Another library wrapped an attribute after us; a pass-through was left in place."""


class UnknownUpstreamWarning(RuntimeWarning):
    """As UnknownUpstreamError, where the caller chose to go on."""


class UpstreamDefectWarning(RuntimeWarning):
    """The installed framework has a fault of its own that a policy makes matter more."""

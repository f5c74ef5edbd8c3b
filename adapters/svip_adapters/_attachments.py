"""Which models an adapter is attached to, and by which handles; the same for every adapter."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from svip_policy import LengthPolicy
from svip_policy.errors import AlreadyAttachedError

from ._handle import Handle


class Attachments:
    """The handles of one adapter, one a model, each with the options it was attached with.

    Args:
        target_logits: whether the adapter gives a record the target's logits.
        kind: of its handles.
    """

    def __init__(self, target_logits: bool = False, kind: type[Handle] = Handle) -> None:
        self._target_logits, self._kind = target_logits, kind
        self._handles: WeakKeyDictionary[Any, tuple[Handle, dict[str, Any]]] = WeakKeyDictionary()
        self._lock = threading.RLock()

    def attach(
        self, model: Any, policy: LengthPolicy, options: dict[str, Any],
        install: Callable[[Handle, ExitStack], None],
    ) -> Handle:
        """The handle of ``model``, made now if there is none.

        Args:
            model: what is attached to.
            policy: for the handle.
            options: of the adapter, by name.
            install: patches for a new handle, and leaves on the stack what undoes each; detaching
                runs all of that, whatever one of them raises. If it raises, nothing stays.

        Raises:
            AlreadyAttachedError: the handle there is has another policy or other options.
        """
        with self._lock:
            attached, its_options = self._handles.get(model, (None, options))
            if attached is None:
                return self._new(model, policy, options, install)
        if attached.policy == policy and its_options == options:
            return attached
        given = ", ".join(f"{name}={value}" for name, value in its_options.items())
        raise AlreadyAttachedError(
            f"{attached.policy!r} with {given} is attached to this model; detach() it first, or "
            f"use handle.use({policy!r}) for a while"
        )

    def _new(self, model: Any, policy: LengthPolicy, options: dict[str, Any],
             install: Callable[[Handle, ExitStack], None]) -> Handle:
        patches = ExitStack()
        own = weakref.ref(model)  # a forgotten handle must not keep the model alive

        def detach() -> None:
            if own() is not None:
                self._handles.pop(own(), None)
            patches.close()

        handle = self._kind(policy, detach, self._target_logits)
        with ExitStack() as undo:
            install(handle, undo)
            patches = undo.pop_all()
        self._handles[model] = handle, options
        return handle

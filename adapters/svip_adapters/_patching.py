"""Reversible patching of one attribute of one object; shared by all adapters.

One dispatcher stands in for an attribute and calls an immutable tuple of layers. A layer
leaves by identity, so the order of detaching does not matter. When the last one leaves,
the attribute is put back exactly as it was, or deleted where it was absent. If another
library has wrapped the dispatcher meanwhile, it stays as a pass-through.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from svip_policy.errors import PatchedOverWarning

_ABSENT = object()
_LOCK = threading.RLock()

Wrapper = Callable[..., Any]
"""Called as ``wrapper(original, *args, **kwargs)`` with the arguments of the call.

Where a method is patched on an instance, ``original`` is bound and ``args`` has no self;
on a class or module both are as in the call, a class method's class included.
"""


class _Site:
    """One patched attribute and its layers; found again through the dispatcher itself."""

    def __init__(self, owner: Any, name: str) -> None:
        # Weak: a patched object that nobody else holds may go, its patch with it.
        self._owner, self.name = weakref.ref(owner), name
        self.layers: tuple[Patch, ...] = ()
        self.saved = vars(owner).get(name, _ABSENT)  # raw: a staticmethod stays one
        raw = inspect.getattr_static(owner, name)
        if isinstance(owner, type | types.ModuleType):
            kind = type(raw) if isinstance(raw, staticmethod | classmethod) else None
            self.dispatcher = self._dispatcher(raw if kind is None else raw.__func__)
            installed: Any = self.dispatcher if kind is None else kind(self.dispatcher)
        elif self.saved is _ABSENT and not isinstance(raw, staticmethod):
            self.dispatcher = self._method_dispatcher(raw)
            installed = types.MethodType(self.dispatcher, owner)
        else:
            installed = self.dispatcher = self._dispatcher(getattr(owner, name))
        setattr(owner, name, installed)

    @property
    def owner(self) -> Any:
        """The patched object; None once it is gone."""
        return self._owner()

    def _layered(self, call: Callable[..., Any]) -> Callable[..., Any]:
        for layer in self.layers:
            call = functools.partial(layer.wrapper, call)
        return call

    def _dispatcher(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dispatcher(*args: Any, **kwargs: Any) -> Any:
            return self._layered(original)(*args, **kwargs)

        dispatcher.__svip_site__ = self  # type: ignore[attr-defined]
        return dispatcher

    def _method_dispatcher(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dispatcher(instance: Any, *args: Any, **kwargs: Any) -> Any:
            call = types.MethodType(original, instance)
            # A copy of a patched object carries the dispatcher along, and is not attached.
            wrapped = self._layered(call) if instance is self.owner else call
            return wrapped(*args, **kwargs)

        dispatcher.__svip_site__ = self  # type: ignore[attr-defined]
        return dispatcher

    def restore(self) -> None:
        """Put the attribute back, or warn and leave a pass-through under a foreign wrapper."""
        owner = self.owner
        if owner is None:
            return
        if _unbound(vars(owner).get(self.name)) is not self.dispatcher:
            warnings.warn(
                f"{self.name} of {type(owner).__name__} was wrapped by other code after "
                "us; a pass-through stays beneath it",
                PatchedOverWarning, stacklevel=4,
            )
        elif self.saved is _ABSENT:
            delattr(owner, self.name)
        else:
            setattr(owner, self.name, self.saved)


def _unbound(attribute: Any) -> Any:
    """The function within a bound or static method."""
    return getattr(attribute, "__func__", attribute)


def _site_at(owner: Any, name: str) -> _Site | None:
    site = getattr(_unbound(vars(owner).get(name)), "__svip_site__", None)
    # A copied object carries a dispatcher whose site belongs to the one it was copied from.
    return site if isinstance(site, _Site) and site.owner is owner else None


def replaced(owner: Any, name: str) -> bool:
    """Whether other code than ours stands in for the method ``name`` on this very object."""
    return name in vars(owner) and not hasattr(_unbound(vars(owner)[name]), "__svip_site__")


class Patch:
    """One wrapper over ``owner.name``, in force until :meth:`remove`.

    Args:
        owner: an instance (preferred), class or module.
        name: of a callable attribute.
        wrapper: called in its place, with the original first.
    """

    def __init__(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        self.wrapper = wrapper
        with _LOCK:
            self._site: _Site | None = _site_at(owner, name) or _Site(owner, name)
            self._site.layers = (*self._site.layers, self)

    def remove(self) -> None:
        """Take this wrapper out; a second call does nothing."""
        with _LOCK:
            site, self._site = self._site, None
            if site is None:
                return
            site.layers = tuple(layer for layer in site.layers if layer is not self)
            if not site.layers:
                site.restore()

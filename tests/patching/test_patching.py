import copy
import threading
import types

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from svip_adapters._handle import Handle
from svip_adapters._patching import Patch

from svip_policy import SVIP, Constant
from svip_policy.errors import PatchedOverWarning


class Base:
    def f(self, x):
        return ("base", id(self), x)

    @staticmethod
    def s(x):
        return ("static", x)

    @classmethod
    def c(cls, x):
        return ("class", cls, x)


class Sub(Base):
    pass


def tag(label):
    return lambda original, *args, **kwargs: (label, original(*args, **kwargs))


def test_an_instance_is_patched_alone_and_left_without_trace():
    one, other = Sub(), Sub()
    patch = Patch(one, "f", tag("P"))
    assert one.f(1) == ("P", ("base", id(one), 1)) and other.f(1) == ("base", id(other), 1)
    patch.remove()
    assert vars(one) == {} and "f" not in vars(Sub) and one.f(1) == ("base", id(one), 1)


def test_a_module_function():
    module = types.ModuleType("m")
    module.g = original = lambda x: ("g", x)
    patch = Patch(module, "g", tag("P"))
    assert module.g(1) == ("P", ("g", 1))
    patch.remove()
    assert module.g is original


@pytest.mark.parametrize("owner", [Base, Sub, Base()])
def test_a_static_method_stays_one(owner):
    before = dict(vars(owner))
    patch = Patch(owner, "s", tag("P"))
    assert owner.s(1) == ("P", ("static", 1))
    patch.remove()
    assert dict(vars(owner)) == before


def test_a_class_method_stays_one_and_gets_the_class_it_was_called_on():
    before = dict(vars(Base))
    seen = []
    patch = Patch(Base, "c", lambda original, cls, x: seen.append(cls) or original(cls, x))
    assert Base.c(1) == ("class", Base, 1) and Sub.c(2) == ("class", Sub, 2)
    assert Sub().c(3) == ("class", Sub, 3) and seen == [Base, Sub, Sub]
    patch.remove()
    assert dict(vars(Base)) == before and Sub.c(1) == ("class", Sub, 1)


def test_a_method_of_a_class_gets_self():
    patch = Patch(Base, "f", tag("P"))
    one = Sub()
    assert one.f(1) == ("P", ("base", id(one), 1))
    patch.remove()
    assert one.f(1) == ("base", id(one), 1)


@pytest.mark.parametrize("make", [
    lambda: (lambda x: ("own", x)),
    lambda: Sub().f,  # bound to another object, and to stay so
])
def test_an_attribute_of_the_instance_is_put_back(make):
    one = Sub()
    one.f = original = make()
    expected = one.f(1)
    patch = Patch(one, "f", tag("P"))
    assert one.f(1) == ("P", expected)
    patch.remove()
    assert vars(one)["f"] is original


def test_removing_twice_and_out_of_order():
    one = Sub()
    first, second = Patch(one, "f", tag(1)), Patch(one, "f", tag(2))
    assert one.f(0) == (2, (1, ("base", id(one), 0)))
    first.remove()
    first.remove()
    assert one.f(0) == (2, ("base", id(one), 0))
    second.remove()
    assert vars(one) == {}


def test_another_librarys_wrapper_over_ours_survives():
    one = Sub()
    patch = Patch(one, "f", tag("P"))
    inner = one.f
    one.f = foreign = lambda x: ("foreign", inner(x))
    with pytest.warns(PatchedOverWarning, match="f of Sub was wrapped"):
        patch.remove()
    assert one.f is foreign and one.f(0) == ("foreign", ("base", id(one), 0))
    again = Patch(one, "f", tag("Q"))
    assert one.f(0) == ("Q", ("foreign", ("base", id(one), 0)))
    again.remove()
    assert one.f is foreign


def test_a_copy_is_not_attached_and_calls_itself():
    one = Sub()
    patch = Patch(one, "f", tag("P"))
    twin = copy.deepcopy(one)
    assert twin.f(0) == ("base", id(twin), 0)
    own = Patch(twin, "f", tag("Q"))
    assert twin.f(0) == ("Q", ("base", id(twin), 0)) and one.f(0)[0] == "P"
    own.remove()
    patch.remove()
    assert twin.f(0) == ("base", id(twin), 0) and vars(one) == {}


def test_an_absent_attribute_is_an_error():
    with pytest.raises(AttributeError):
        Patch(Sub(), "nothing", tag("P"))


class AnyOrder(RuleBasedStateMachine):
    """Patches come and go in any order on two siblings and their class."""

    patches = Bundle("patches")

    def __init__(self):
        super().__init__()

        class Fresh(Base):
            pass

        self.owners = [Fresh(), Fresh(), Fresh]
        self.alive = [[], [], []]
        self.count = 0

    @rule(target=patches, which=st.booleans())
    def attach(self, which):
        return self._attach(int(which))

    @rule(target=patches)
    def attach_to_class(self):
        return self._attach(2)

    def _attach(self, index):
        self.count += 1
        patch = Patch(self.owners[index], "f", tag(self.count))
        # A method found on an instance is fixed when the instance is first patched.
        self.alive[index].append((self.count, patch))
        return index, patch

    @rule(entry=patches)
    def remove(self, entry):
        index, patch = entry
        patch.remove()
        self.alive[index] = [a for a in self.alive[index] if a[1] is not patch]

    @invariant()
    def what_is_in_place_is_what_is_alive(self):
        for owner, alive in zip(self.owners, self.alive, strict=True):
            assert ("f" in vars(owner)) == bool(alive)
        one = self.owners[0]
        labels, result = [], one.f(0)
        while len(result) == 2:
            labels.append(result[0])
            result = result[1]
        own = [label for label, _ in self.alive[0]][::-1]
        assert labels[: len(own)] == own and result == ("base", id(one), 0)

    def teardown(self):
        for alive in self.alive:
            for _, patch in alive:
                patch.remove()


TestAnyOrder = AnyOrder.TestCase


def test_another_policy_for_a_while_and_for_this_thread_only():
    handle = Handle(Constant(1), on_detach=lambda: None)
    seen = []
    with handle.use("constant(2)"), handle.use(SVIP()):
        assert handle.policy == SVIP() and handle.new_generation().policy == SVIP()
        thread = threading.Thread(target=lambda: seen.append(handle.policy))
        thread.start()
        thread.join()
    assert seen == [Constant(1)] and handle.policy == Constant(1)


def test_detaching_happens_once_and_on_exceptions():
    calls = []
    with pytest.raises(ZeroDivisionError), Handle(Constant(), lambda: calls.append(1)) as handle:
        raise ZeroDivisionError
    handle.detach()
    assert calls == [1] and not handle.attached

"""Choices by the learned model: what a rule makes of an op, beside the op's other forms.

A match of a rule that makes a form of an op (:mod:`mlirules.drivers.measure.forms`) says the op's
sizes by what its names are bound to. Nothing is compiled for that.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlirules.drivers.apply import tracking
from mlirules.drivers.match.results import Around, Match
from mlirules.drivers.match.values import is_fixed
from mlirules.drivers.pipelines.decisions import Decision

if TYPE_CHECKING:
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.measure.forms import Work
    from mlirules.drivers.measure.learned import Model

__all__ = ["Choice", "Chooser", "Yielding", "form_of", "work_of"]

#: The form that rules make, by what their names begin with.
_FORMS = (
    ("kernel-convolution-", "kernel"),
    ("kernel-depthwise-", "kernel"),
    ("linalg-one-by-one-nchw", "one-by-one"),
    ("linalg-one-by-one-strided-nchw", "one-by-one"),
    ("linalg-im2col-nchw", "im2col"),
    ("linalg-winograd-nchw", "winograd"),
    ("linalg-depthwise-by-places-", "places"),
    ("torch-depthwise-channels-last", "channels-last"),
)


#: Forms that were measured with packed products.
_PACKED = {"one-by-one", "im2col", "winograd"}


def form_of(rule: str) -> str | None:
    """The form that a rule makes of an op; None where the model has no word for it."""
    return next((form for start, form in _FORMS if rule.startswith(start)), None)


def work_of(match: Match) -> Work | None:
    """The op that such a rule matches; None where it is none of those that were measured."""
    from mlirules.drivers.measure.forms import Convolution

    # A rule of depthwise windows has no name for filters: they are its channels.
    env: dict[str, Any] = {"F": match.env.get("C"), **match.env}
    depthwise = "F" not in match.env or env.get("groups", 1) != 1
    sizes = [env.get(name) for name in ("N", "C", "H", "W", "F", "P", "Q", "I", "J")]
    if any(not isinstance(size, int) for size in sizes):
        return None
    n, c, h, w, f, p, q, i, j = (int(size) for size in sizes if isinstance(size, int))
    named = ("x", "w", "y")
    if any(getattr(getattr(env.get(n), "dtype", None), "name", "") != "f32" for n in named):
        return None
    if "st" in env:
        (down, along), far, pads = env["st"], env["dl"], env["pd"]
        # What was measured is padded so that a window stands over every place.
        if list(pads) != [p // 2, q // 2]:
            return None
        if depthwise and not env.get("groups", c) == c == f:
            return None
    else:
        down, along, far = env.get("s"), env.get("t"), (env.get("d"), env.get("e"))
        # The image was padded before.
        h, w = h - 2 * (p // 2), w - 2 * (q // 2)
    if n != 1 or p != q or down != along or not isinstance(down, int):
        return None
    if (p > 1 and list(far) != [1, 1]) or min(h, w) < 1:
        return None
    return Convolution(c, f, p, down, h, w, i, j, depthwise)


@dataclass(frozen=True)
class Choice:
    """What an op takes in the form that a rule makes, and in the others."""

    model: Model
    form: str
    seconds: dict[str, float]

    @property
    def own(self) -> float:
        """Seconds in the rule's form."""
        return self.seconds[self.form]

    def best(self) -> str:
        """The fastest of the other forms that rules make."""
        others = (f for f in self.seconds if f not in (self.form, "plain"))
        return min(others, key=self.seconds.__getitem__, default=self.form)

    @property
    def leads(self) -> bool:
        """Whether it is faster than a kernel and than what other rules make.

        What the compiler has of its own was hardly ever the fastest where it was measured, and then
        by less than it can be foretold: of ops that a kernel can take, the other forms alone are
        held against each other.
        """
        return "kernel" in self.seconds and self.own < self.seconds[self.best()]


@dataclass
class Chooser:
    """Asks the learned model of a target about matches."""

    target: Target
    flags: tuple[str, ...] = ()
    _known: dict[Any, dict[str, float]] = field(default_factory=dict)

    @functools.cached_property
    def model(self) -> Model | None:
        """Read when a match asks for it: most programs have nothing to choose."""
        from mlirules.drivers.measure import learned

        return learned.for_target(self.target)

    def __call__(self, match: Match) -> Choice | None:
        """What the model says of a match; None where it says nothing."""
        form = form_of(match.rule.name)
        if form is None or self.target.kind != "cpu":
            return None
        work, model = work_of(match), self.model
        # The forms were measured of weights that are transformed and packed when the program is
        # compiled, where a call that brings them would transform them each time.
        if work is None or model is None or not is_fixed(match.values.get("w")):
            return None
        if work not in self._known:
            self._known[work] = self._seconds(model, work)
        seconds = self._known[work]
        if form not in seconds or len(seconds) < 2:
            return None
        return Choice(model, form, seconds)

    def certain(self, match: Match) -> bool:
        """Whether the rule makes the one form of an op that is right whatever a model says."""
        from mlirules.drivers.measure import forms

        work, form = work_of(match), form_of(match.rule.name)
        if form is None or work is None or self.target.kind != "cpu":
            return False
        return is_fixed(match.values.get("w")) and form == forms.sole(work)

    def _seconds(self, model: Model, work: Work) -> dict[str, float]:
        found = model.choices(work)
        if not set(model.flags) <= set(self.flags) and found.keys() & _PACKED:
            return {}
        return found


class Yielding:
    """For a stage whose rules make way where another form of the op is faster by a margin."""

    def __init__(self, chooser: Chooser, margin: float) -> None:
        self._chooser = chooser
        self._margin = margin
        self.decisions: list[Decision] = []

    def __call__(self, match: Match, _around: Around) -> bool:
        """Whether to apply the rule."""
        choice = self._chooser(match)
        if choice is None:
            return True
        best = choice.best()
        if choice.own <= (1 + self._margin) * choice.seconds[best]:
            return True
        location = str(tracking.place(match.root)).removeprefix("loc(").removesuffix(")")
        self.decisions.append(
            Decision(
                rule=match.rule.name,
                applies=False,
                model="learned",
                target=self._chooser.target.name,
                location=location.replace('"', ""),
                op=match.root.name,
                before_ms=1e3 * choice.seconds[best],
                after_ms=1e3 * choice.own,
                ratio=choice.seconds[best] / choice.own,
                before={"form": best},
                after={"form": choice.form},
                source=str(choice.model),
                reason=f"its form {best} is faster",
            )
        )
        return False

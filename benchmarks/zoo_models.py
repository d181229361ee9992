"""The models of the zoo, by name, with weights that make every layer matter.

``zoo_models.py:make`` with the argument ``name`` is something that ``mlirules import`` takes.
"""

import copy
import zlib
from typing import TYPE_CHECKING, Any, Protocol

import zoo_timm
import zoo_torchvision
import zoo_transformers

if TYPE_CHECKING:
    import torch


DRAWINGS = 6
"""How often weights are drawn for a model whose results they make uncertain."""
WELL_CONDITIONED = 1e-4
"""How far PyTorch's f32 may be from its f64, over the largest result: a tenth of the tolerance."""


class Recipe(Protocol):
    """Something that makes a model, its positional and its keyword arguments."""

    def make(self) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
        """The three of them; needs the package that the model is from."""


def recipes() -> dict[str, Recipe]:
    """All models by name, ``package/model``, in the order of the tables. Needs no torch."""
    tables: dict[str, Any] = {
        "timm": zoo_timm.FAMILIES,
        "torchvision": zoo_torchvision.MODELS,
        "transformers": zoo_transformers.MODELS,
    }
    return {
        f"{package}/{name}": recipe
        for package, table in tables.items()
        for name, recipe in table.items()
    }


def made(name: str) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
    """A model ready for comparison, its arguments; the same ones whenever it is asked for."""
    import torch

    worst = 0.0
    for attempt in range(DRAWINGS):
        torch.manual_seed(zlib.crc32(name.encode()) + attempt)
        model, args, kwargs = recipes()[name].make()
        model.eval()
        draw(model, args, kwargs, calm=2.0**attempt)
        apart = conditioning(model, args, kwargs)
        if apart is None or apart <= WELL_CONDITIONED:
            return model, args, kwargs
        worst = max(worst, apart)
    raise ValueError(
        f"{DRAWINGS} times weights were drawn for {name} with which PyTorch's f32 is apart from "
        f"its own f64 by up to {worst:.1e}: no verdict on a compiler"
    )


def conditioning(
    model: "torch.nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]
) -> float | None:
    """How far PyTorch's results are from those of the same model in f64, over the largest of them.

    Not a number counts as infinitely far. None where the model does not run in f64, or gives no
    finite results there: a mask of the smallest f64, twice, is an infinity.
    """
    import torch
    from torch.utils import _pytree as pytree

    def double(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.double() if floating else value

    def results(of: "torch.nn.Module", *given: Any) -> "list[torch.Tensor]":
        args, kwargs = copy.deepcopy(given)
        leaves = pytree.tree_leaves(of(*args, **kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    with torch.no_grad():
        ours = results(model, args, kwargs)
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            wide = copy.deepcopy(model).double()
            exact = results(wide, *pytree.tree_map(double, (args, kwargs)))
        except (RuntimeError, TypeError, ValueError):
            return None
        finally:
            torch.set_default_dtype(usual)
    worst, scale = 0.0, 0.0
    for got, want in zip(ours, exact, strict=True):
        if not got.is_floating_point() or not got.numel():
            continue
        if got.isfinite().all() and not want.isfinite().all():
            return None
        same = got.double() == want.double()  # an infinity too
        apart = torch.where(same, 0.0, (got.double() - want.double()).abs())
        worst = max(worst, float(torch.nan_to_num(apart, nan=torch.inf).max()))
        scale = max(scale, float(torch.nan_to_num(want.double(), 0, 0, 0).abs().max()))
    return worst / scale if scale else worst


def make(name: str) -> "torch.nn.Module":
    """:func:`made` as one module that carries its inputs."""
    model, args, kwargs = made(name)
    vars(model)["example_inputs"] = kwargs or args  # no parameter, buffer or module
    return model


def draw(
    model: "torch.nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any], calm: float = 1.0
) -> None:
    """Draw the weights and statistics of ``model`` so that its results depend on all of them.

    What is constant, or all but zero, as gains, offsets, layer scales and tokens are when they are
    fresh, is drawn around its value. Then the model runs once on its arguments, while the weights
    of each product and convolution are scaled so that it gives numbers of order one, and each
    normalisation takes statistics near those that it sees; the higher ``calm``, the less of a
    difference each passes on to the next.
    """
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel():
                _draw(parameter)
        hooks = [
            module.register_forward_hook(_Calibrate(calm))
            for module in model.modules()
            if not any(True for _ in module.children())
        ]
        try:
            model(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()


def _draw(parameter: "torch.Tensor") -> None:
    import torch

    centre = float(parameter.mean())
    spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
    if spread > 1e-3 * abs(centre) and spread > 1e-3:
        # Positions and tables of offsets are drawn with 0.02, and would drown.
        if spread < 0.05 and parameter.dim() != 2 and parameter.dim() < 4:
            parameter.mul_(0.3 / spread)
        return
    if abs(centre) > 1e-2:
        parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
    elif centre > 0:  # a layer scale of 1e-6
        parameter.copy_(torch.empty_like(parameter).uniform_(0.5, 1.0))
    else:
        parameter.normal_(0.0, 0.3)


class _Calibrate:
    """A forward hook that adjusts a module to what it is called with, the first time."""

    def __init__(self, calm: float) -> None:
        self.calm = calm
        self.done = False

    def __call__(self, module: "torch.nn.Module", given: tuple[Any, ...], result: Any) -> Any:
        import torch

        if self.done or not isinstance(result, torch.Tensor) or not given:
            return None
        self.done = True
        weight = getattr(module, "weight", None)
        if isinstance(getattr(module, "running_mean", None), torch.Tensor):
            return self._statistics(module, given[0])
        if isinstance(weight, torch.Tensor) and weight.dim() >= 2 and result.is_floating_point():
            return self._scaled(module, weight, result)
        return None

    def _statistics(self, module: Any, seen: "torch.Tensor") -> "torch.Tensor":
        import torch

        over = [d for d in range(seen.dim()) if d != 1]
        spread, mean = torch.var_mean(seen.float(), over, correction=0)
        # A channel that hardly varies beside its mean or beside the others, on few pixels of one
        # image, would be blown up to order one together with its rounding errors.
        whole = float(seen.float().square().mean())
        spread = torch.maximum(spread, mean.square()).clamp(min=0.1 * whole + 1e-2)
        noise = torch.empty_like(mean)
        module.running_mean.copy_(mean + 0.3 * spread.sqrt() * noise.normal_())
        module.running_var.copy_(self.calm * spread * noise.uniform_(2.0, 4.0))
        result: torch.Tensor = module.forward(seen)
        return result

    def _scaled(
        self, module: Any, weight: "torch.Tensor", result: "torch.Tensor"
    ) -> "torch.Tensor | None":
        import torch

        spread = float(result.float().std()) if result.numel() > 1 else float(result.abs().max())
        if not 1e-30 < spread < 1e30 or 0.5 < spread < 1.5:
            return None
        weight.mul_(1 / spread)
        bias = getattr(module, "bias", None)
        if isinstance(bias, torch.Tensor):
            bias.mul_(1 / spread)
        return result / spread

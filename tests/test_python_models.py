"""PyTorch's models through a session: called like the model, with the model's weights."""

import copy
import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlirules

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - after the skip


class Model(nn.Module):
    """Nested results, a number and a name among its arguments, a buffer that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any, scale: float = 2.0, *, shift: Any = None) -> dict[str, Any]:
        self.calls += 1
        h = self.norm(self.linear(x)).relu() * scale
        return {"h": h, "t": h.t(), "x": x, "s": (h.sum(0) if shift is None else h + shift, 3)}


def test_called_as_the_model_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    session = mlirules.Session("cpu")
    model = Model().eval()
    x = torch.randn(4, 8)
    called = session.compile(model, (x,))
    wanted, found = copy.deepcopy(model)(x), called(x)
    assert found["x"] is x
    assert found["s"][1] == 3
    for key in ("h", "t"):
        torch.testing.assert_close(found[key], wanted[key], rtol=1e-4, atol=1e-5)
        assert found[key].stride() == wanted[key].stride()
    assert model.calls == 1
    arrays = called(x.numpy())
    np.testing.assert_allclose(arrays["h"], wanted["h"].detach().numpy(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        model.linear.weight.mul_(2)
    model.norm.running_mean.data.add_(1)
    torch.testing.assert_close(called(x)["h"], model(x)["h"], rtol=1e-4, atol=1e-4)
    with pytest.raises(mlirules.MlirulesError, match=r"\[5, 8\], compiled for"):
        called(torch.randn(5, 8))
    with pytest.raises(mlirules.MlirulesError, match="compiled for arguments like"):
        called(x, 3.0)
    with pytest.raises(mlirules.MlirulesError, match="changes its inputs or buffers"):
        called.export(tmp_path / "no")


def test_nothing_is_copied_that_need_not_be() -> None:
    called = mlirules.Session().compile(nn.ReLU(), torch.zeros(64, 1024))
    statistics = called._graph._alone._device.allocator.statistics  # type: ignore[attr-defined]
    x = torch.randn(64, 1024)
    called(x)
    before = statistics["device_bytes_allocated"] + statistics["host_bytes_allocated"]
    result = called(x)
    after = called._graph._alone._device.allocator.statistics  # type: ignore[attr-defined]
    made = after["device_bytes_allocated"] + after["host_bytes_allocated"] - before
    # Memory for the result alone: the argument is read, and the result handed out, in place.
    assert made <= result.nbytes
    torch.testing.assert_close(result, x.relu())


def test_sizes_that_vary_and_exported_programs(tmp_path: Path) -> None:
    session = mlirules.Session()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    x = torch.randn(3, 4)
    called = session.compile(model, (x,), dynamic_shapes=({0: batch},))
    for n in (1, 3, 64):
        y = torch.randn(n, 4)
        torch.testing.assert_close(called(y), model(y), rtol=1e-4, atol=1e-5)
    exported = torch.export.export(model, (x,))
    torch.export.save(exported, tmp_path / "model.pt2")
    for source in (exported, tmp_path / "model.pt2"):
        torch.testing.assert_close(session.compile(source)(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_deployed_model_answers_as_the_model(tmp_path: Path) -> None:
    import subprocess
    import sys

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(2, 4)
    folder = mlirules.Session().compile(model, x).export(tmp_path / "model")
    np.save(folder / "a0.npy", x.numpy())
    code = "import run, numpy as np; np.save('r0.npy', run.load()(np.load('a0.npy'))[0])"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    np.testing.assert_allclose(np.load(folder / "r0.npy"), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_model_that_does_not_export_is_told() -> None:
    class Branch(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(mlirules.MlirulesError, match=r"torch\.export raised"):
        mlirules.Session().compile(Branch(), torch.ones(2))


def test_a_fusion_of_two_functions() -> None:
    @mlirules.fusion(torch.randn(4, 8), torch.randn(16, 8))
    class SiluByHand:
        """One op that gated layers are recognised by."""

        @staticmethod
        def pattern(x: Any, w: Any) -> Any:
            y = x @ w.t()
            return y * torch.sigmoid(y)

        @staticmethod
        def replacement(x: Any, w: Any) -> Any:
            return nn.functional.silu(x @ w.t())

    assert SiluByHand.name == "silu-by-hand"
    assert SiluByHand.document["match"] == [
        "m0 = torch.aten.permute(w, [1, 0])",
        "m1 = torch.aten.mm(x, m0)",
        "m2 = torch.aten.sigmoid(m1)",
        "m3 = torch.aten.mul.Tensor(m1, m2)",
    ]
    assert SiluByHand.document["rewrite"][-1] == "m3 = torch.aten.silu(r1)"
    assert SiluByHand.document["where"] == ["T0 in [f32]"]

    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(5, 8))

        def forward(self, x: Any) -> Any:
            y = x @ self.w.t()
            return y * torch.sigmoid(y) + 1

    model, x = Gate(), torch.randn(3, 8)
    called = mlirules.Session(rules=[SiluByHand]).compile(model, x)
    assert called.applications["silu-by-hand"] == 1
    torch.testing.assert_close(called(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_fusion_that_a_rule_cannot_say() -> None:
    class Halves:
        @staticmethod
        def pattern(x: Any) -> Any:
            return x.to(torch.float16)

        @staticmethod
        def replacement(x: Any) -> Any:
            return x

    with pytest.raises(mlirules.MlirulesError, match="halves"):
        mlirules.fusion(torch.randn(4))(Halves)
    with pytest.raises(mlirules.MlirulesError, match="has no function 'pattern'"):
        mlirules.fusion(torch.randn(4))(object)


def test_a_call_runs_few_functions() -> None:
    """What a call costs beside the program is told by these, on any machine."""

    class Add(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x + y

    x = torch.randn(4, 4)
    program = mlirules.Session().compile(Add(), (x, x))
    for value, most in ((x, 7), (x.numpy(), 9)):
        program(value, value)
        kinds: list[str] = []
        gc.disable()  # what dies calls functions of PyTorch's
        sys.setprofile(lambda _frame, kind, _what, into=kinds: into.append(kind))
        program(value, value)
        sys.setprofile(None)
        gc.enable()
        assert kinds.count("call") <= most

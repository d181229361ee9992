"""The devices that a process has open, and what goes wrong on them as errors of ours."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Iterator

from iree.runtime import _binding, get_driver

from mlirules.drivers.iree.pages import of_host
from mlirules.language.faults import Fault, MlirulesError, Span

__all__ = ["RunError", "device", "first_line", "run_error", "run_errors"]


#: What a CPU's device keeps of the memory that calls give back, for others of the same size:
#: sixteen buffers at most, of 1 GiB together. The C library returns what is larger than 32 MiB to
#: the system, which then clears each page again at its first touch: a call that writes 64 MB takes
#: 59 ms instead of 12 (Zen 3).
_KEPT = "caching:*=1gib;1gib;16"


class RunError(MlirulesError):
    """A compiled program did not run to its end.

    ``kind`` is ``error`` (the runtime said why), ``crash`` (its process died) or ``timeout``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(Fault(Span("<run>"), kind, message))
        self.kind = kind
        self.message = message


class _Devices:
    """The process's devices, by their URIs."""

    def __init__(self) -> None:
        self._open: dict[str, _binding.HalDevice] = {}
        # Buffers of programs that are still loaded lie on them, and do not keep them.
        self._left: list[_binding.HalDevice] = []
        self._opening = threading.Lock()

    def get(self, uri: str) -> _binding.HalDevice:
        with self._opening:
            found = self._open.get(uri)
            if found is None:
                kept = [_KEPT] if of_host(uri) else None
                found = get_driver(uri).create_device_by_uri(uri, allocators=kept)
                self._open[uri] = found
        return found

    def leave(self, device: _binding.HalDevice) -> None:
        """Open an accelerator anew the next time; CPUs stay open."""
        with self._opening:
            held = [uri for uri, on in self._open.items() if on is device and not of_host(uri)]
            self._left += [self._open.pop(uri) for uri in held]


@functools.cache
def _devices() -> _Devices:
    return _Devices()


def device(uri: str) -> _binding.HalDevice:
    """The process's device of a URI (``Target.device``).

    After a program that failed, CUDA's device takes no other: accelerators are opened anew then.
    """
    return _devices().get(uri)


@contextlib.contextmanager
def run_errors(on: _binding.HalDevice | None = None) -> Iterator[None]:
    """The bindings' errors as RunError; ``on``: the device that a program ran on."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise run_error(error, on) from error


def run_error(error: Exception, on: _binding.HalDevice | None = None) -> RunError:
    """What the bindings raise, as RunError; ``on``: the device that a program ran on."""
    other = re.search(r'not found or unavailable.*#hal\.device\.target<"([a-z]+)"', str(error))
    if other is not None:
        kind = "cpu" if other[1] == "local" else other[1]
        return RunError(
            "error",
            f"the program was compiled for another device than it is run on: --target {kind}",
        )
    if on is not None:
        _devices().leave(on)
    return RunError("error", first_line(error))


def first_line(error: Exception) -> str:
    """The runtime's message without the source file it comes from and the VM stack it appends."""
    text = re.split(r";?\s*\n|; while invoking|; \[ *\d+\]", str(error).strip())[0]
    text = re.sub(r"\S*runtime/src/\S+:\d+: |<vm>:\d+: |: #hal\.device\.target<.*", "", text)
    return re.sub(r"^Error \w+ [\w ]+: ", "", text).strip()

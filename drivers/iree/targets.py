"""Targets: what a program is compiled for, with the flags, the device and the hook that works.

A target is written ``KIND`` or ``KIND:ARCHITECTURE``: ``cpu``, ``cpu:x86-64-v3``, ``vulkan``,
``cuda:sm_80``, ``hip:gfx942``. ``cpu`` and ``vulkan`` alone mean the machine that compiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirules.language.faults import MlirulesError, did_you_mean

CPU_ARCHITECTURES = ("x86-64-v3", "x86-64-v4", "sapphirerapids", "znver4")
CUDA_ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89")
HIP_ARCHITECTURES = (
    "gfx908",
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx1100",
    "gfx1101",
    "gfx1150",
    "gfx1151",
    "gfx1200",
    "gfx1201",
)
#: ``baseline`` is the compiler's portable default: 32-bit arithmetic and storage only.
VULKAN_ARCHITECTURES = ("baseline", "rdna3", "ampere", "valhall")
_DEFAULT_ARCHITECTURE = {"cuda": "sm_80", "hip": "gfx942"}
_DEVICES = {"cpu": "local-task", "vulkan": "vulkan", "cuda": "cuda", "hip": "hip"}

#: Kinds of target whose code generation reads ``--iree-codegen-tuning-spec-path``. Elsewhere the
#: compiler ignores the flag and reports success.
TUNING_SPEC_KINDS = frozenset({"cpu", "hip"})


def known() -> list[str]:
    """Every target that :meth:`Target.parse` takes, as it is written."""
    return [
        "cpu",
        *(f"cpu:{arch}" for arch in CPU_ARCHITECTURES),
        "vulkan",
        *(f"vulkan:{arch}" for arch in VULKAN_ARCHITECTURES),
        *(f"cuda:{arch}" for arch in CUDA_ARCHITECTURES),
        *(f"hip:{arch}" for arch in HIP_ARCHITECTURES),
    ]


@dataclass(frozen=True)
class Target:
    """One target. Equal when its kind and architecture are; usable as a dictionary key.

    ``kind`` is ``cpu``, ``vulkan``, ``cuda`` or ``hip``; ``architecture`` is empty for the machine
    that compiles (``vulkan`` without a device: the portable baseline).
    """

    kind: str
    architecture: str = ""

    @classmethod
    def parse(cls, text: str) -> Target:
        """The target that ``text`` names. Raises MlirulesError naming the known ones."""
        if text not in known():
            _refuse(text)
        kind, _, arch = text.partition(":")
        return cls(kind, arch)

    @classmethod
    def of(cls, given: Target | str) -> Target:
        """A target as it is, or the one that a text names. Raises as :meth:`parse` does."""
        return given if isinstance(given, Target) else cls.parse(given)

    @property
    def flags(self) -> tuple[str, ...]:
        """What the compiler is told."""
        return _flags(self.kind, self.architecture)

    @property
    def device(self) -> str:
        """The runtime's device URI."""
        return _DEVICES[self.kind]

    @property
    def name(self) -> str:
        """The target as it is written: ``cuda:sm_80``."""
        return f"{self.kind}:{self.architecture}" if self.architecture else self.kind

    def __str__(self) -> str:
        return self.name

    @property
    def reads_tuning_spec(self) -> bool:
        """Whether ``--iree-codegen-tuning-spec-path`` has an effect for this target."""
        return self.kind in TUNING_SPEC_KINDS

    def available(self) -> str | None:
        """``None`` when a device for this target is here, else the reason why not."""
        # These ask the compiler and the runtime, which those who only name a target need not load.
        if self.kind == "cpu":
            from mlirules.drivers.iree import cpu

            return cpu.problem(self.architecture)
        from mlirules.drivers.iree import devices

        return devices.device_problem(self.device)


def _flags(kind: str, arch: str) -> tuple[str, ...]:
    if kind == "cpu":
        from mlirules.drivers.iree import cpu

        return cpu.flags(arch)
    if kind == "vulkan" and not arch:
        from mlirules.drivers.iree import vulkan

        device = vulkan.device()
        if device is not None:
            return (f"--iree-hal-target-device={device.target()}",)
    flag = {"vulkan": "vulkan", "cuda": "cuda", "hip": "rocm"}[kind]
    if arch == "baseline":
        arch = ""
    chosen = (f"--iree-{flag}-target={arch}",) if arch else ()
    return (f"--iree-hal-target-device={kind}", *chosen)


def _refuse(text: str) -> None:
    kind, _, arch = text.partition(":")
    names = known()
    if kind in _DEFAULT_ARCHITECTURE and not arch:
        default = f"{kind}:{_DEFAULT_ARCHITECTURE[kind]}"
        raise MlirulesError.at(
            "--target",
            f"target {text!r} needs an architecture",
            code="target",
            suggestion=f"write for example {default!r}; known: " + _listed(kind),
        )
    if kind in _DEVICES and arch:
        choices = _listed(kind)
        raise MlirulesError.at(
            "--target",
            f"{kind!r} has no architecture {arch!r} that this compiler knows",
            code="target",
            suggestion=f"known: {choices}",
        )
    raise MlirulesError.at(
        "--target",
        f"unknown target {text!r}",
        code="target",
        suggestion=" ".join(
            filter(None, [did_you_mean(text, names), "known: " + ", ".join(names)])
        ),
    )


def _listed(kind: str) -> str:
    return ", ".join(name for name in known() if name.partition(":")[0] == kind)

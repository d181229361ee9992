"""The Vulkan device of this machine, described as the compiler wants to know it.

Without a description the compiler assumes a small portable device: 32-bit arithmetic and storage,
subgroups of 64 without operations among them. What it then puts in the place of f16 gives wrong
numbers in places, and does not compile in others.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from mlirules.drivers.iree import devices
from mlirules.support import children

_ARITHMETIC = 1 << 2
_SHUFFLE = 1 << 4

#: What a driver has beyond what the runtime reports of its device (arithmetic, and the limits,
#: of which Vulkan only promises 128 threads and 16 KiB of shared memory to a workgroup).
_KNOWN = {"llvmpipe": (("fp64", "int64"), 1024, 32768)}


#: The SPIR-V that comes with each version of Vulkan. An older one than the device's own can hang
#: llvmpipe.
_SPIRV = {"1.0": "v1.0", "1.1": "v1.3", "1.2": "v1.5", "1.3": "v1.6"}


@dataclass(frozen=True)
class Device:
    """One device: what the runtime says of it, by line (``features``, ``subgroup``, ``driver``)."""

    facts: dict[str, str]

    @property
    def name(self) -> str:
        """What the driver calls it."""
        return self.facts.get("name", "")

    def target(self) -> str:
        """The device as a ``#hal.device.target`` attribute."""
        driver = self.facts.get("driver", "")
        further, threads, memory = _KNOWN.get(driver, ((), 128, 16384))
        features = dict(re.findall(r"(\w+)=(\w+)", self.facts.get("features", "")))
        subgroup = dict(re.findall(r"(\w+)=(\w+)", self.facts.get("subgroup", "")))
        has = {name for name, value in features.items() if value == "yes"}
        compute = ["fp32", "int32", *further]
        storage = ["b32"]
        if "int64" in further:
            storage.append("b64")
        if "storageBuffer16BitAccess" in has:
            storage.append("b16")
            compute.append("int16")
            if "shaderFloat16" in has:
                compute.append("fp16")
        if {"storageBuffer8BitAccess", "shaderInt8"} <= has:
            storage.append("b8")
            compute.append("int8")
        mask = int(subgroup.get("operations", "0"), 16)
        operations = [
            word for word, bit in (("shuffle", _SHUFFLE), ("arithmetic", _ARITHMETIC)) if mask & bit
        ]
        spirv = _SPIRV.get(".".join(self.facts.get("api", "").split(".")[:2]), "v1.6")
        depth = 64 if threads == 128 else threads
        return (
            '#hal.device.target<"vulkan", [#hal.executable.target<"vulkan-spirv", '
            '"vulkan-spirv-fb", {iree_codegen.target_info = #iree_gpu.target<'
            f'arch = "{driver}", features = "spirv:{spirv},cap:Shader", wgp = <'
            f"compute = {'|'.join(compute)}, storage = {'|'.join(storage)}, "
            f"subgroup = {'|'.join(operations) or 'none'}, "
            f"subgroup_size_choices = [{subgroup.get('size', '64')}], "
            f"max_workgroup_sizes = [{threads}, {threads}, {depth}], "
            f"max_thread_count_per_workgroup = {threads}, "
            f"max_workgroup_memory_bytes = {memory}, "
            "max_workgroup_counts = [65535, 65535, 65535]>>}>]>"
        )


def parse(report: str) -> Device | None:
    """The first device of what ``iree-run-module --dump_devices=vulkan`` prints."""
    facts: dict[str, str] = {}
    for line in report.splitlines():
        found = re.match(r"(\w+): (.*)", line)
        if found and facts.setdefault(found[1], found[2]) != found[2]:
            break  # the next device begins
    return Device(facts) if "subgroup" in facts else None


@functools.cache
def device() -> Device | None:
    """The first Vulkan device of this machine, or ``None``. Asked once a process."""
    command = [str(devices.tool_path("iree-run-module")), "--dump_devices=vulkan"]
    try:
        asked = children.run(command, timeout=60)
    except children.TimedOut:
        return None
    return parse(asked.stdout) if asked.status == 0 else None

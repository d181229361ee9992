"""``mlirules version``: what is installed, and which devices are here."""

from __future__ import annotations

from mlirules.commands.common import Json, say, say_json
from mlirules.support.package import VERSION

EXAMPLE = "mlirules version"


def command(as_json: Json = False) -> None:
    """Print the versions that matter, and the devices programs can run on here."""
    from mlirules.drivers.iree import compiler, runtime

    facts: dict[str, object] = {
        "mlirules": VERSION,
        "iree-base-compiler": compiler.version(),
        "iree-base-runtime": runtime.version(),
        "devices": [device.uri for device in runtime.devices()],
    }
    if as_json:
        say_json(facts)
        return
    for name, value in facts.items():
        say(f"{name:<20} {', '.join(value) if isinstance(value, list) else value}")

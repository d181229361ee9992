"""What mlirules uses of the runtime."""

from iree.runtime import flags as flags
from iree.runtime._binding import HalDriver
from iree.runtime._binding import ParameterIndex as ParameterIndex

def get_driver(device_uri: str) -> HalDriver: ...

"""What mlirules uses of the runtime."""

from iree.runtime import flags as flags
from iree.runtime._binding import HalDevice, HalDriver
from iree.runtime._binding import ParameterIndex as ParameterIndex

def get_device(device_uri: str, cache: bool = True) -> HalDevice: ...
def get_driver(device_uri: str) -> HalDriver: ...

"""What mlirules uses of the runtime."""

from iree.runtime import flags as flags
from iree.runtime._binding import HalDevice
from iree.runtime._binding import ParameterIndex as ParameterIndex

def get_device(device_uri: str, cache: bool = True) -> HalDevice: ...

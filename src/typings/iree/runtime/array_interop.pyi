"""From the types of numpy to those of the runtime."""

from typing import Any

import numpy as np
from iree.runtime._binding import HalElementType

def map_dtype_to_element_type(dtype: np.dtype[Any]) -> HalElementType | None: ...

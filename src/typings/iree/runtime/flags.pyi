"""The runtime's flags, which hold for the whole process."""

from iree.runtime._binding import parse_flags as parse_flags

"""Object stores, behind one small protocol."""

from typing import Final

RANGES_IN_FLIGHT: Final = 4
RANGE_BYTES: Final = 8 << 20

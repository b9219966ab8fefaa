"""The compiled part of the scan and the combine: functions that numba turns into machine code."""

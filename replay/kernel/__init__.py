"""The compiled half of the scan and of the combine: functions that numba turns into machine code."""

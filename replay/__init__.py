"""Rebuilds producer state from segments: the fold, its mergeable summary, the window, and the Spark job."""

from typing import Final

DEFAULT_EXPIRATION_MS: Final = 604_800_000
"""Seven days, ``transactional.id.expiration.ms`` before 3.4: too long costs reading, too short correctness."""
DEFAULT_CHECK_INTERVAL_MS: Final = 600_000
DEFAULT_TRANSACTION_MAX_TIMEOUT_MS: Final = 900_000

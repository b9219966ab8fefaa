"""Settings of the producer id quota (KIP-936) that the service applies to callers of its API."""

from typing import Annotated, Literal

from pydantic import Field

from resnap.scheduler.settings.declaration import Count, Milliseconds, Setting, SettingGroup


class QuotaSettings(SettingGroup):
    """How new producer ids are counted, and how long they count as known; rates are those of ``resnap quota set``."""

    title = "Quota of producer ids"
    at_start = True

    producer_id_quota_window_num: Annotated[
        Count, Setting("Samples that a rate is measured over.", "N", kafka=("producer.id.quota.window.num",))
    ] = 11
    producer_id_quota_window_size_seconds: Annotated[
        Annotated[int, Field(ge=1, le=31_536_000)],
        Setting(
            "Time span of each sample, and how long an id counts as known.",
            "SECONDS",
            kafka=("producer.id.quota.window.size.seconds",),
        ),
    ] = 3600
    producer_id_quota_cache_cleanup_scheduler_interval_ms: Annotated[
        Milliseconds,
        Setting(
            "How often expired ids are removed from memory.",
            "MS",
            kafka=("producer.id.quota.cache.cleanup.scheduler.interval.ms",),
        ),
    ] = 10_000
    producer_id_quota_false_positive_rate: Annotated[
        Annotated[float, Field(ge=1e-9, le=0.5)],
        Setting("Share of new ids that may pass without being counted.", "SHARE"),
    ] = 0.01
    producer_id_quota_profile: Annotated[
        Literal["P-A", "P-B", "P-C", "P-L"],
        Setting("Which text of the KIP defines how long an id counts as known; see docs/quota.md."),
    ] = "P-C"

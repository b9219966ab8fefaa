"""OpenTelemetry traces: a span per run, per partition replayed here or shipped, and per shipped segment.

The standard variables ask for them: an endpoint for OTLP over HTTP. Without one nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import install_hint
from resnap.storage.spans import take_spans
from resnap.storage.version import resnap_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.sdk.trace import TracerProvider

    from resnap.storage.spans import Add, Taker

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP: Final = "http/protobuf"


@contextmanager
def export_spans(environment: Mapping[str, str], warn: Callable[[str], None]) -> Iterator[None]:
    """Export the spans of this process while the context lasts, if ``environment`` asks for it; ``warn`` says why not.

    What was not exported at its end is then, for as long as the exporter's own time limit allows.
    """
    provider = _provider(environment, warn) if is_asked_for(environment) else None
    if provider is None:
        yield
        return
    take_spans(_taker(provider))
    try:
        yield
    finally:
        take_spans(None)
        provider.shutdown()


def _taker(provider: TracerProvider) -> Taker:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415 - if asked

    tracer = provider.get_tracer("resnap", resnap_version())

    @contextmanager
    def opened(name: str, attributes: Mapping[str, str | int]) -> Iterator[Add]:
        with tracer.start_as_current_span(
            name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        ) as one:
            try:
                yield one.set_attribute
            except Exception as error:
                one.set_status(StatusCode.ERROR, type(error).__name__)  # its text is for the log, which masks secrets
                raise

    return opened


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Whether the variables name an endpoint for traces, and do not switch them off."""
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    exporter = environment.get("OTEL_TRACES_EXPORTER") or "otlp"
    return exporter == "otlp" and not is_off and any(environment.get(name) for name in _ENDPOINTS)


def _provider(environment: Mapping[str, str], warn: Callable[[str], None]) -> TracerProvider | None:
    """Return what makes spans and exports them; the libraries read the other variables themselves."""
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _HTTP)
    if protocol != _HTTP:
        warn(f"no traces are sent: OTLP is supported over {_HTTP}, and not {protocol}")
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - if asked
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        libraries = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        warn(f"no traces are sent: {install_hint('otel', libraries)}")
        return None
    is_named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if is_named else {"service.name": "resnap"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)  # that it gave up, not each try before
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider

"""Request bodies: JSON under Kafka's own names, in camel case, with settings as they are declared."""

from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Final, Literal, Self, Union, get_args, get_origin

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, create_model, model_validator
from pydantic.alias_generators import to_camel

from resnap.scheduler.job.contract import Door, Verb
from resnap.scheduler.runs.run import RunRequest
from resnap.scheduler.settings.declaration import KnownKeys
from resnap.scheduler.settings.settings import DECLARED
from resnap.scheduler.settings.values import parse_as_of

Place = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
PartitionName = Annotated[str, StringConstraints(min_length=3, max_length=260, pattern=r"^[a-zA-Z0-9._-]+-[0-9]+$")]
Glob = Annotated[str, StringConstraints(min_length=1, max_length=260)]
DurationText = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(ms|s|m|h|d)$")]
_DATE, _TIME = "20[0-9]{2}-[01][0-9]-[0-3][0-9]", "[0-2][0-9]:[0-5][0-9](:[0-5][0-9])?"


def _checked_moment(text: str) -> str:
    """Return ``text``, if the calendar has the day."""
    parse_as_of(text)
    return text


Moment = Annotated[
    str,
    StringConstraints(pattern=rf"^(now|roll|{_DATE}T{_TIME}(Z|[+-][01][0-9]:[0-5][0-9]))$"),
    AfterValidator(_checked_moment),
]
"""`now`, `roll`, or an ISO 8601 time with a zone."""


_MOST_KEYS: Final = 64
"""The most keys of an object; more than any form has. Each one that is not known is an error of its own."""
_PLACES: Final = {
    "sources": (list[Place], Field([], max_length=64)),
    "partitions": (list[PartitionName], Field([], max_length=10_000)),
    "destination": (Place, ...),
    "kind": (Literal["regenerate", "tier"], "regenerate"),
}
_ALWAYS: Final = {"boundaries", "dry_run", "verify_crc"}
"""What a body decides even where it does not name it."""


class Form(KnownKeys):
    """Camel case outside, and nothing that is not known."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Body(Form):
    """What is asked for; nothing in it is taken for something else, such as a text for a number."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _has_not_too_many_keys(cls, value: object) -> object:
        if isinstance(value, dict) and len(value) > _MOST_KEYS:
            raise ValueError(f"an object of {len(value)} keys, expected {_MOST_KEYS} at most")
        return value


def _body(*names: str, **own: Any) -> Any:  # noqa: ANN401 - a class that is made
    """Return a form of these settings, with their types, defaults and descriptions, and of these places."""
    fields: Any = {name: own.get(name) or _PLACES.get(name) or _field(name) for name in names}
    return create_model("Body", __base__=Body, **fields)


def _field(name: str) -> Any:  # noqa: ANN401 - as `create_model` takes it
    """Return the field of a setting."""
    one = DECLARED[name]
    default = [] if get_origin(one.field.annotation) is tuple else one.field.default
    return _form(one.field.annotation), Field(default, description=one.setting.description)


def _form(kind: Any) -> Any:  # noqa: ANN401 - types
    """Return the type of a value in JSON, for the type of a setting; what has a form of its own is text."""
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return Moment if datetime in parts else reduce(or_, map(_form, parts))
    if get_origin(kind) is tuple:
        return Annotated[list[Glob], Field(max_length=64)]
    return DurationText if parts and parts[0] is timedelta else kind


class Window(_body("as_of", "full", "max_reach_back", "producer_id_expiration_ms", "history_expiration_ms")):  # type: ignore[misc]
    """What a replay takes into account; as the flags of the shell command of the same names."""


class PlanBody(_body("topics", "exclude_topics", "boundaries", "remote", "sources", "partitions")):  # type: ignore[misc]
    """What to plan."""

    window: Window = Window()

    @classmethod
    def of(cls, request: RunRequest) -> Self:
        """Return the body that asks for the same."""
        settings = dict(request.settings)
        window = {name: settings.pop(name) for name in Window.model_fields if name in settings}
        places = {"sources": list(request.sources), "partitions": list(request.partitions)}
        body: Self = cls.model_validate({**places, **settings, "window": window})
        return body


class PlannedRunBody(_body("dry_run", "kind", "destination")):  # type: ignore[misc]
    """How to carry out a plan."""


class ReplayBody(PlanBody, PlannedRunBody, _body("verify_crc")):  # type: ignore[misc]
    """A replay: snapshots as files (`regenerate`), or segments with them into a store (`tier`)."""


def body_of(kind: str, verb: Verb, door: Door) -> type[Body]:
    """Return the body with which the API is asked for a run of a verb."""
    arguments = {name: (argument.checked, argument.default) for name, argument in verb.arguments.items()}
    body: type[Body] = create_model(f"{kind.title()}Body", __base__=_body(*door.asks, **arguments), __doc__=door.body)
    return body


def asked_by(body: Body, kind: str) -> RunRequest:
    """Return the run that a body asks for; what was not given stays the service's, but for ``_ALWAYS``."""
    asked = body.model_dump(exclude={"kind"}, exclude_unset=True, exclude_none=True)
    given = {**body.model_dump(include=_ALWAYS), **asked.pop("window", {}), **asked}
    given = {name: value for name, value in given.items() if value != []}
    sources, partitions = (tuple(given.pop(name, ())) for name in ("sources", "partitions"))
    to = given.pop("destination", None)
    return RunRequest(kind=kind, sources=sources, partitions=partitions, destination=to, settings=given)

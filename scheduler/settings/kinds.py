"""What groups of settings share: kinds of values, read from text, and the word where each was given."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Final, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field

from resnap.scheduler.settings.values import parse_duration, parse_size, split_list

DEFAULT_ORIGIN: Final = "default"


def from_text(parse: Callable[[str], object]) -> BeforeValidator:
    """Parse a string, and leave anything else to the type."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


Listed: TypeAlias = Annotated[tuple[str, ...], from_text(split_list)]
Milliseconds: TypeAlias = Annotated[int, Field(ge=1, le=(1 << 63) - 1)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Size: TypeAlias = Annotated[int, from_text(parse_size), Field(ge=1)]
Duration: TypeAlias = Annotated[timedelta, from_text(parse_duration)]
MaybeDuration: TypeAlias = Annotated[timedelta | None, from_text(parse_duration)]


class WithOrigins(BaseModel):
    """Settings that know where they were given."""

    origins: Mapping[str, str] = Field(default_factory=dict, exclude=True)
    """Origin by setting, for those that were given."""

    def origin(self, name: str) -> str:
        """Return where the value of the setting ``name`` was given."""
        return self.origins.get(name, DEFAULT_ORIGIN)

"""The OpenAPI description: FastAPI's own, with the problems that every route may return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi.openapi.utils import get_openapi
from pydantic.alias_generators import to_camel

from resnap.scheduler.api.problems import Problem, problems

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.routing import APIRoute

ALWAYS: Final = ("unknown-host", "invalid-request", "internal-error", "misconfigured", "failed", "state-unusable")
OF_TOKENS: Final = ("unauthenticated", "forbidden", "too-many-failures")
OF_CHANGES: Final = ("cross-site", "body-too-large", "not-json")
OF_BODIES: Final = ("bad-request",)
_OF_THE_FRAMEWORK: Final = ("HTTPValidationError", "ValidationError")


def operation_id(route: APIRoute) -> str:
    """Return what generated clients call an operation, such as ``listRuns``."""
    return to_camel(route.name)


def describe(app: FastAPI, *, needs_token: bool) -> None:
    """Have ``app`` describe itself with all problems; without ``needs_token`` tokens are not described."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, summary=app.summary, description=app.description,
                routes=app.routes, tags=app.openapi_tags,
            )  # fmt: skip
            for path, methods in schema.get("paths", {}).items():
                for method, operation in methods.items():
                    # As they come in the path: generated clients take them in this order.
                    operation.get("parameters", []).sort(key=lambda one: path.find(f"{{{one['name']}}}") % (1 << 16))
                    _complete(operation, method, needs_token=needs_token)
            _define_problem(schema, needs_token=needs_token)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign] # the way that FastAPI documents


def _complete(operation: dict[str, Any], method: str, *, needs_token: bool) -> None:
    """Add the problems of an operation to those that its route names."""
    if not needs_token:
        operation.pop("security", None)
    codes = list(ALWAYS)
    codes += OF_TOKENS if "security" in operation else ()
    codes += OF_CHANGES if method not in {"get", "head", "options"} else ()
    codes += OF_BODIES if "requestBody" in operation else ()
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)  # the framework's own, which is not what is answered
    for status, said in problems(*dict.fromkeys(codes)).items():
        named = responses.setdefault(str(status), said)
        if said["description"] not in named["description"]:
            named["description"] += f"; {said['description']}"
    operation["responses"] = dict(sorted(responses.items()))


def _define_problem(schema: dict[str, Any], *, needs_token: bool) -> None:
    components = schema.setdefault("components", {})
    if not needs_token:
        components.pop("securitySchemes", None)
    schemas = components.setdefault("schemas", {})
    for name in _OF_THE_FRAMEWORK:
        schemas.pop(name, None)
    defined = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(defined.pop("$defs"))
    schemas["Problem"] = defined

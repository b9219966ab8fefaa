"""The OpenAPI description: FastAPI's own, with an example of every route, and the problems that it may return."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

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
_EXAMPLES: Final[dict[str, object]] = {
    "sources": ["/var/lib/kafka/data"], "topics": ["payments*"], "destination": "/var/lib/resnap/snapshots",
    "topic": "payments", "partition": 0, "offset": 552, "to": 683, "producerId": 4,
    "run_id": "01m8b8n2eb84hb97fgnj", "plan_id": "01m8b8n2eb84hb97fgnk", "name": "look", "code": "not-found",
}  # fmt: skip
"""By parameter, or field of a body; what has none is its own example."""
_IN_BODIES: Final = ("sources", "topics")
"""What an example of a body has, besides what it must have."""
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
                    _exemplify(operation, method, path, schema["components"]["schemas"])
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


def _exemplify(operation: dict[str, Any], method: str, path: str, schemas: dict[str, Any]) -> None:
    """Add an example to what a request must have, and the request as a command."""
    needed = [parameter for parameter in operation.get("parameters", []) if parameter["required"]]
    for parameter in needed:
        parameter["example"] = _example(parameter["name"])
    query = urlencode({parameter["name"]: parameter["example"] for parameter in needed if parameter["in"] == "query"})
    for parameter in needed:
        path = path.replace(f"{{{parameter['name']}}}", quote(str(parameter["example"]), safe=""))
    command = ["curl", "-s", *(() if method == "get" else ("-X", method.upper()))]
    if "security" in operation:
        command += ["-H", "Authorization: Bearer TOKEN"]
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        body = schemas[content["schema"]["$ref"].rsplit("/")[-1]]
        names = [name for name in body["properties"] if name in {*_IN_BODIES, *body.get("required", ())}]
        content["example"] = {name: _example(name) for name in names}
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(content["example"])]
    address = f"http://127.0.0.1:8936{path}{'?' if query else ''}{query}"
    operation["x-codeSamples"] = [{"lang": "Shell", "source": shlex.join([*command, address])}]


def _example(name: str) -> object:
    return _EXAMPLES.get(name, name)


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

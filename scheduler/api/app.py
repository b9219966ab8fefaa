"""The application: routes put together over the services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

if TYPE_CHECKING:
    from scheduler.daemon.services import Services


def create_app(services: Services) -> FastAPI:
    """Return the application over ``services``."""
    app = FastAPI(title="Resnap", docs_url=None, redoc_url=None)
    app.state.services = services

    @app.get("/livez")
    def livez() -> dict[str, str]:
        return {"status": "ok"}

    return app

"""What routes get of the service: ``def route(services: Serving)``."""

from typing import Annotated, TypeAlias

from fastapi import Depends, Request

from resnap.scheduler.daemon.services import Services


async def services_in(request: Request) -> Services:
    """Return the services of the application that a request was made to; at once, and so in no thread of its own."""
    services: Services = request.app.state.services
    return services


Serving: TypeAlias = Annotated[Services, Depends(services_in)]

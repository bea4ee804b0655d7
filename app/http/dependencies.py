"""How a route gets at its room: `Annotated[Intake, of(Intake)]`. `main` puts one of each kind into the app."""

from typing import Any, TypeVar

from fastapi import FastAPI, Request

from app.http.complete_request import resolver

T = TypeVar("T")


def service(kind: type[T]) -> Any:
    def find(request: Request) -> T:
        room: T = request.app.state.rooms[kind]
        return room

    return resolver(find)


def install_services(app: FastAPI, *rooms: object) -> None:
    app.state.rooms = {type(room): room for room in rooms}

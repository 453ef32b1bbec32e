"""The HTTP endpoint of a run: predictions for clients and newcomers by the models of its clusters.

::

    GET  /health    the run, and its numbers of clients and clusters
    GET  /clients   the names of the clients and their clusters
    POST /predict   {"rows": …} with {"client": NAME}, {"cluster": NUMBER}, or {"newcomer": {x, y}}
    POST /assign    {"x": rows, "y": labels, "by": "update" or "losses"}, or only {"x": rows}

Rows have the form that they had in the training: lists of values in the order of the columns,
objects with the columns or arrays by name, or sequences of numbers. An error is JSON: {"error": one
line}.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from wecfl.errors import ConfigError, WecflError
from wecfl.runs.json_values import json_number
from wecfl.runs.newcomers import Assignment, By
from wecfl.runs.result import Result

__all__ = ["make_app"]

MAX_ROWS = 10_000
"""The largest number of rows in a request."""
MAX_BODY_BYTES = 32 << 20
"""The largest request, in bytes."""

Rows = Annotated[list[Any], Field(min_length=1, max_length=MAX_ROWS)]
"""Samples: rows of a table, or nested lists of numbers."""


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Newcomer(_Asked):
    """Samples of a client that took no part in the training, with their labels if it has some."""

    x: Rows
    y: Rows | None = None
    by: By | None = None


class _Prediction(_Asked):
    """Rows, and the client, the cluster or the newcomer whose model predicts for them."""

    rows: Rows
    client: str | None = None
    cluster: int | None = None
    newcomer: _Newcomer | None = None


def make_app(result: Result) -> FastAPI:
    """The endpoint of a result, which any ASGI server can serve."""
    app = FastAPI(title="wecfl", docs_url=None, redoc_url=None)
    _add_answers(app, result)
    _add_errors(app)
    app.add_middleware(_BodyLimit)
    return app


def _add_answers(app: FastAPI, result: Result) -> None:
    """What the endpoint tells about a result."""
    training = Lock()  # newcomers train one after the other

    def assigned(newcomer: _Newcomer) -> Assignment:
        with training:
            return result.assign(newcomer.x, newcomer.y, by=newcomer.by)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {
            "status": "ok", "run": str(result.folder), "method": result.method.name,
            "clients": len(result.labels), "clusters": len(result.centers),
        }  # fmt: skip

    @app.get("/clients")
    def clients() -> dict[str, int]:
        return dict(zip(result.federation.names, result.labels.tolist(), strict=True))

    @app.post("/predict")
    def predict(asked: _Prediction) -> dict[str, Any]:
        given = [asked.client, asked.cluster, asked.newcomer]
        if sum(choice is not None for choice in given) != 1:
            raise ConfigError(
                "give exactly one of client, cluster and newcomer, whose model is to predict"
            )
        cluster = assigned(asked.newcomer).cluster if asked.newcomer else asked.cluster
        return _prediction(result, asked.rows, asked.client, cluster)

    @app.post("/assign")
    def assign(asked: _Newcomer) -> dict[str, Any]:
        found = assigned(asked)
        numbers = ("confidence", "distance", "loss", "novelty", "limit", "found")
        return {
            "cluster": found.cluster, "novel": found.novel, "samples": found.samples,
            "by": found.by, **{name: json_number(getattr(found, name)) for name in numbers},
            "scores": {name: json_number(score) for name, score in found.scores.items()},
        }  # fmt: skip


def _prediction(
    result: Result, rows: Rows, client: str | None, cluster: int | None
) -> dict[str, Any]:
    """What the model of a client or of a cluster predicts for rows."""
    found, shares = result.predictions(rows, client=client, cluster=cluster)
    if client is not None:
        cluster = int(result.labels[list(result.federation.names).index(client)])
    answer = {"cluster": cluster, "predictions": found.tolist()}
    if shares is None:
        return {**answer, "targets": result.target_names} if result.target_names else answer
    names = result.class_names or result.target_names
    classes: list[Any] = names or [*range(shares.shape[1])]
    return {**answer, "classes": classes, "probabilities": shares.tolist()}


def _add_errors(app: FastAPI) -> None:
    """Whatever goes wrong is told in one line of JSON."""

    @app.exception_handler(WecflError)
    def refused(_: Request, error: WecflError) -> JSONResponse:
        return _error(400, str(error))

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(each) for each in first["loc"][1:])
        return _error(422, f"{place}: {first['msg']}" if place else str(first["msg"]))

    @app.exception_handler(HTTPException)
    def unknown_path(request: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


def _error(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": " ".join(text.split())}, status)


Receive = Callable[[], Awaitable[Any]]
"""A function by which an ASGI app gets the next part of a request."""


class _BodyLimit:
    """Refuses a request that is too long, before it is in memory."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        parts: list[Any] = []
        size, more = 0, scope["type"] == "http"
        while more:
            part = await receive()
            size += len(part.get("body", b""))
            more = part.get("more_body", False)
            if size <= MAX_BODY_BYTES:
                parts.append(part)
            else:
                parts.clear()  # but read all: many clients look for an answer only at the end
        if size > MAX_BODY_BYTES:
            limit = f"a request must have at most {MAX_BODY_BYTES >> 20} MiB: send fewer rows"
            await _error(413, limit)(scope, receive, send)
            return

        async def replay() -> Any:
            return parts.pop(0) if parts else await receive()

        await self._app(scope, replay, send)

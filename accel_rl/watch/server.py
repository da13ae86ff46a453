"""The server of `accel-rl watch`: the list of runs, their pages, their videos and three scripts. It writes nothing."""

import hashlib
import logging
import socket
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from accel_rl import report
from accel_rl.errors import UsageError
from accel_rl.report.page import load_plotly, load_templates, make_page
from accel_rl.report.record import RunRecord
from accel_rl.version import __version__
from accel_rl.watch.runs import Stamp, WatchedRuns, address, stamp

HOST = "127.0.0.1"
HERE = Path(__file__).parent
PROGRAMS = (HERE / "live.js", Path(report.__path__[0]) / "page.js")
SHUTDOWN_S = 1  # wait for unfinished responses: a browser may read a video for its whole length
# Pages of other sites can neither show nor measure this server's responses.
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def serve(folder: Path, listener: socket.socket) -> None:
    """Serves the runs in a folder to browsers of this machine, until SIGINT."""
    app = make_app(folder, listener.getsockname()[1])
    config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=SHUTDOWN_S)
    server = uvicorn.Server(config)
    # Responses cut off at the end are not errors.
    logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
    server.run(sockets=[listener])


def make_app(folder: Path, port: int) -> Any:
    """Returns the ASGI application of the runs in a folder, at a port of this machine. It answers only requests to this
    machine's own names; otherwise another site's page could read runs through a name that resolves to this machine."""
    runs = WatchedRuns(folder)
    templates, plotly = load_templates(HERE), load_plotly()
    templates.filters["address"] = address

    def find(request: Request, file: str = "") -> Path:
        """Returns the resolved path, or that of a file in it. Answers 404 if it is missing or lies outside."""
        named: str = request.path_params["path"]
        try:
            path = runs.root / named / file
            if path.exists() and runs.has(path):
                return path.resolve()
        except (OSError, ValueError):  # no file can have such a name
            pass
        raise HTTPException(404, f"there is no {file or 'run'} at {named} in {folder}")

    @lru_cache(maxsize=16)
    def make(path: Path, _: Stamp) -> str:
        def find_videos(records: Sequence[RunRecord]) -> dict[Path, str]:
            having = (record.folder for record in records if record.video)
            return {run: f"/video/{address(run.relative_to(runs.root))}" for run in having}

        return make_page([path], find_videos, runs.read, is_live=True)

    def show_list(request: Request) -> Response:
        page = templates.get_template("runs.html").render(folder=folder, runs=runs.by_folder(), version=__version__)
        return _answer(request, page)

    def show_page(request: Request) -> Response:
        path = find(request)
        try:
            return _answer(request, make(path, stamp(path)))
        except (UsageError, OSError) as error:  # it may have just been removed
            raise HTTPException(404, str(error)) from None

    def send_video(request: Request) -> Response:
        return FileResponse(find(request, "video.mp4"))

    def send_plotly(_: Request) -> Response:
        return Response(plotly, media_type="text/javascript", headers={"Cache-Control": "max-age=3600"})

    def send_program(request: Request) -> Response:
        (file,) = (file for file in PROGRAMS if file.name == request.url.path[1:])
        return FileResponse(file, headers={"Cache-Control": "no-cache"})

    app = Starlette(
        routes=[
            Route("/", show_list),
            Route("/run/{path:path}", show_page),
            Route("/video/{path:path}", send_video),
            Route("/plotly.js", send_plotly),
            *(Route(f"/{file.name}", send_program) for file in PROGRAMS),
        ]
    )
    hosts = {f"{name}:{port}".encode() for name in (HOST, "localhost")}

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        if scope["type"] == "http" and dict(scope["headers"]).get(b"host") not in hosts:
            await PlainTextResponse(f"use http://{HOST}:{port}/", 400)(scope, receive, send_guarded)
        else:
            await app(scope, receive, send_guarded)

    return guarded


def _answer(request: Request, page: str) -> Response:
    """Answers with a page, or with "not modified" if the browser has it already."""
    content = page.encode(errors="replace")
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(content, headers=headers)

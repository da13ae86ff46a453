"""What `accel-rl watch` serves: the list of runs, their pages, their videos and two programs. Nothing is written."""

import socket
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from accel_rl.errors import UsageError
from accel_rl.report.page import load_plotly, load_templates, make_page
from accel_rl.report.record import RunRecord
from accel_rl.training.folder_lock import is_being_written
from accel_rl.version import __version__
from accel_rl.watch.command import HOST
from accel_rl.watch.runs import Stamp, list_runs, stamp

HERE = Path(__file__).parent


def serve(folder: Path, listener: socket.socket) -> None:
    """Serves the runs in a folder until SIGINT, to browsers of this machine."""
    app = make_app(folder, listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False)).run(sockets=[listener])


def make_app(folder: Path, port: int) -> Any:
    """Returns the ASGI application of the runs in a folder, at a port of this machine. It answers only requests that
    name this machine as their host: a page from elsewhere, under a name that leads here, would read them otherwise."""
    root = folder.resolve()
    templates, plotly = load_templates(HERE), load_plotly()

    def find(request: Request) -> Path:
        """Returns what a path names, unless that, or anything that a page reads of it, lies elsewhere."""
        named = request.path_params["path"]
        try:
            path = (root / named).resolve()
            if path.exists() and all(
                part.resolve().is_relative_to(root) for part in [path, *path.glob("*"), *path.glob("*/*")]
            ):
                return path
        except (OSError, ValueError):  # no file can have such a name
            pass
        raise HTTPException(404, f"there is no run {named} in {folder}")

    @lru_cache(maxsize=16)
    def make(path: Path, _stamp: Stamp, _is_running: bool) -> str:
        def find_videos(records: Sequence[RunRecord]) -> dict[Path, str]:
            return {
                record.folder: f"/video/{quote(str(record.folder.relative_to(root)))}"
                for record in records
                if record.video
            }

        return make_page([path], find_videos, is_live=True)

    def show_list(_: Request) -> Response:
        page = templates.get_template("runs.html").render(folder=folder, runs=list_runs(root), version=__version__)
        return HTMLResponse(page)

    def show_page(request: Request) -> Response:
        path = find(request)
        try:
            return HTMLResponse(make(path, stamp(path), is_being_written(path)))
        except UsageError as error:
            raise HTTPException(404, str(error)) from None

    def send_video(request: Request) -> Response:
        video = find(request) / "video.mp4"
        if not video.is_file():
            raise HTTPException(404, "this run has no video")
        return FileResponse(video)

    def send_plotly(_: Request) -> Response:
        return Response(plotly, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    def send_program(_: Request) -> Response:
        return FileResponse(HERE / "live.js")

    app = Starlette(
        routes=[
            Route("/", show_list),
            Route("/run/{path:path}", show_page),
            Route("/video/{path:path}", send_video),
            Route("/plotly.js", send_plotly),
            Route("/live.js", send_program),
        ]
    )
    hosts = {f"{name}:{port}".encode() for name in (HOST, "localhost")}

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"host") not in hosts:
            await PlainTextResponse(f"ask for http://{HOST}:{port}/", 400)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return guarded

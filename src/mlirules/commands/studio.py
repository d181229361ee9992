"""``mlirules studio``: a rule, a program and what becomes of it, in a local web page."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mlirules.commands.common import note
from mlirules.commands.options import Argument, Option
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.quality.studio import Studio

EXAMPLE = "mlirules studio my-sigmoid.yaml model.mlir"
HOST = "127.0.0.1"
#: Bytes of a request.
MAX_BODY = 1 << 20


def command(
    rule: Annotated[Path | None, Argument(help="A rule file to begin with.")] = None,
    program: Annotated[Path | None, Argument(help="A program to begin with.")] = None,
    port: Annotated[int, Option(min=0, max=65535, help="The port; 0: one that is free.")] = 0,
) -> None:
    """Serve one page on 127.0.0.1: faults, matches, refusals, the diff and numbers as you type.

    The address holds a token: who does not know it gets nothing. Files are read when the page is
    opened, and never written. Needs the extra `studio`: pip install 'mlirules[studio]'.
    """
    from mlirules.drivers.quality.studio import Studio

    try:
        import uvicorn
    except ImportError:
        raise _missing() from None
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        raise MlirulesError.at("--port", f"{port}: {error.strerror}", code="port") from None
    listening.listen(64)  # who reads the address may connect at once
    token = secrets.token_urlsafe(24)
    studio = Studio()
    texts = [_read(path) for path in (rule, program)]
    made = application(studio, token, *texts, port=listening.getsockname()[1])
    note(f"http://{HOST}:{listening.getsockname()[1]}/{token}/   (Ctrl-C ends it)")
    try:
        uvicorn.Server(
            uvicorn.Config(made, log_level="warning", access_log=False, timeout_keep_alive=5)
        ).run(sockets=[listening])
    finally:
        studio.stop()
        listening.close()


def _missing() -> MlirulesError:
    return MlirulesError.not_installed(
        "studio", "the studio needs starlette and uvicorn, which are not installed", "studio"
    )


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")[:MAX_BODY]
    except (OSError, UnicodeDecodeError) as error:
        raise MlirulesError.at(str(path), f"cannot be read: {error}", code="file") from None


def application(studio: Studio, token: str, rule: str, program: str, *, port: int) -> Any:
    """The ASGI application: the page, and what it asks. Raises MlirulesError for the extra."""
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise _missing() from None
    from mlirules.drivers.quality.studio import page

    own = {f"{HOST}:{port}", f"localhost:{port}"}

    def refused(request: Request) -> Response | None:
        """Nothing for who does not know the token, nor by other names of this machine."""
        known = secrets.compare_digest(request.path_params["token"].encode(), token.encode())
        if not known or request.headers.get("host", "") not in own:
            return PlainTextResponse("not found", 404)
        return None

    async def shown(request: Request) -> Response:
        if (no := refused(request)) is not None:
            return no
        nonce = secrets.token_urlsafe(16)
        return HTMLResponse(
            page(rule, program, nonce),
            headers={
                "Content-Security-Policy": "default-src 'none'; connect-src 'self'; base-uri "
                "'none'; form-action 'none'; frame-ancestors 'none'; "
                f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'",
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cache-Control": "no-store",
            },
        )

    async def judged(request: Request) -> Response:
        if (no := refused(request)) is not None:
            return no
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] not in own:
            return PlainTextResponse("another page's request", 403)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse("not JSON", 415)
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > MAX_BODY:
                return PlainTextResponse(f"more than {MAX_BODY} bytes", 413)
        try:
            asked = _asked(bytes(data))
        except ValueError as error:
            return PlainTextResponse(str(error), 400)
        texts = asked["rule"], asked["program"]
        return JSONResponse(await run_in_threadpool(studio.judge, *texts, numbers=asked["numbers"]))

    return Starlette(
        routes=[
            Route("/{token}/", shown, methods=["GET"]),
            Route("/{token}/judge", judged, methods=["POST"]),
        ]
    )


def _asked(data: bytes) -> dict[str, Any]:
    """What the page asks. Raises ValueError for anything else."""
    import json

    try:
        asked = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    kinds = {"rule": str, "program": str, "numbers": bool}
    fits = isinstance(asked, dict) and set(asked) == set(kinds)
    if not fits or not all(isinstance(asked[k], kind) for k, kind in kinds.items()):
        raise ValueError("rule, program (texts) and numbers (true or false)")
    found: dict[str, object] = asked
    return found

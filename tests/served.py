"""The command line without its start-up, for tests that run it often.

Loading the command line takes longer than most of what the tests ask of it. A server has loaded it
once and forks a child for every call; a client, which stands where ``python -m mlirules`` would,
hands it its arguments, environment, folder and streams, and ends as the child ended.

    command()           what to run instead of ``[sys.executable, "-m", "mlirules"]``
    served.py SOCKET    the server
    served.py SOCKET MODULE [ARGUMENT ...]    a client that runs a module
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys

ADDRESS = "MLIRULES_TESTS_SERVER"
"""The variable that holds the socket of this run's server."""


def command(module: str = "mlirules") -> list[str]:
    """The first words of a command that runs `module`: served, where a server was started."""
    address = os.environ.get(ADDRESS)
    if address is None:
        return [sys.executable, "-m", module]
    return [sys.executable, "-I", "-S", __file__, address, module]


def call(address: str, module: str, arguments: list[str]) -> int:
    """Have the server run a module with this process's streams; returns its exit status."""
    # What json and pathlib take to load would be most of the client's time.
    folder = os.fsencode(os.getcwd())  # noqa: PTH109
    environment = b"\0".join(b"%s=%s" % pair for pair in os.environb.items())
    words = b"\0".join(map(os.fsencode, [module, *arguments]))
    asked = b"".join(struct.pack("!I", len(part)) + part for part in (folder, words, environment))
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"?"], [0, 1, 2])
        server.sendall(asked)
        (code,) = struct.unpack("!i", _exactly(server, 4))
    if code < 0:
        os.kill(os.getpid(), -code)
    return int(code)


def _exactly(connection: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        some = connection.recv(size - len(got))
        if not some:
            raise ConnectionError("the other end is gone")
        got += some
    return got


def serve(address: str) -> None:
    """Answer calls until the process that started this one is gone."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        listening.settimeout(5)
        _load()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while os.getppid() == parent:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(connection)
            connection.close()


def _load() -> None:
    """Import what calls need; nothing of it starts a thread or makes a context."""
    import importlib
    import pkgutil

    import mlirules.commands
    import mlirules.drivers.apply.programs
    import mlirules.drivers.pipelines.transform
    import mlirules.language.loader
    import mlirules.language.pipeline_file

    for found in pkgutil.iter_modules(mlirules.commands.__path__, "mlirules.commands."):
        importlib.import_module(found.name)


def _answer(connection: socket.socket) -> None:
    """Run what a client asks for in a child; tell how it ended. Does not return."""
    connection.settimeout(None)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    folder, words, environment = (
        _exactly(connection, struct.unpack("!I", _exactly(connection, 4))[0]) for _ in range(3)
    )
    module, *arguments = map(os.fsdecode, words.split(b"\0"))
    child = os.fork()
    if child == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environb.update(pair.split(b"=", 1) for pair in environment.split(b"\0"))
        os.chdir(folder)
        _run(module, arguments)
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(child, 0)
    try:
        connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
    except OSError:  # a client that was stopped does not listen
        os._exit(1)
    os._exit(0)


def _run(module: str, arguments: list[str]) -> None:
    """Run a module as `python -m` does, and end as it ends."""
    import atexit
    import runpy
    import threading
    import traceback

    # As they are when Python starts: what was read or written before is another call's.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = [module, *arguments]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 - told as Python tells it
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120
    os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(call(sys.argv[1], sys.argv[2], sys.argv[3:]))

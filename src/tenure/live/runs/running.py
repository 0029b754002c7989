"""Runs a script as `python` would: its arguments, output, errors and exit code stay its own."""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import signal
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.errors import BadInputError, TenureError, UsageError
from tenure.lifetimes.sources import is_own
from tenure.live.runs.lookout import Lookout
from tenure.live.runs.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenure.diagnoses import Finding
    from tenure.live.runs.record import Record

MODULE = "-m"


@dataclass(frozen=True)
class Run:
    """A script that ran.

    Attributes:
        exit_code: What `python` would have exited with.
        record: What was seen of its memory; None in a process that the script forked.
        interrupted: Whether Ctrl-C ended it.
        error: The name of the exception that ended it; "" for none.
        torch_version: Of the torch that it imported; None if it imported none.
        races: What was found of its streams.
    """

    exit_code: int
    record: Record | None
    interrupted: bool = False
    error: str = ""
    torch_version: tuple[int, int] | None = None
    races: tuple[Finding, ...] = ()


def run_script(
    script: str,
    arguments: tuple[str, ...],
    report: Callable[[Run], None] = lambda _: None,
    *,
    before: Callable[[], None] | None = None,
) -> Run:
    """Runs a script and watches its memory.

    Args:
        script: Path of the script; or "-m", then a module's name is the first argument.
        arguments: Its `sys.argv[1:]`.
        report: Called after the script has ended, before the interpreter closes down.
        before: Called when the script has imported torch.

    Raises:
        BadInputError: There is no such script.
        UsageError: "-m" without a module.
    """
    if script == MODULE:
        execute = _module(arguments)
    else:
        execute = _file(script, arguments)
    process = os.getpid()
    watch = Watch()
    ended: BaseException | None = None
    when_imported("torch", lambda: _torch_is_there(watch, before))
    lookout = Lookout()

    def leaves(status: int) -> None:
        _look_at_the_end(watch, None)
        _end(watch, process, status, report)
        lookout.end()

    lookout.begin()
    with _reported_at_os_exit(leaves):
        try:
            execute()
            _wait_for_threads()
        except BaseException as error:  # noqa: BLE001  whatever ends a script ends it
            ended = error
            _without_our_frames(error)
        # Another Ctrl-C now ends the looking, not what the script has left to say.
        _look_at_the_end(watch, ended)
    code = _exit_code(ended)
    name = "" if ended is None or isinstance(ended, SystemExit) else type(ended).__name__
    interrupted = isinstance(ended, KeyboardInterrupt)
    ended = None
    run = _end(watch, process, code, report, error=name, interrupted=interrupted)
    lookout.end()
    if interrupted:
        _die_of_interrupt()
    return run


def _file(script: str, arguments: tuple[str, ...]) -> Callable[[], None]:
    """Makes `__main__` and `sys` as a script expects them; what is given back runs it."""
    path = os.path.abspath(script)  # noqa: PTH100  as Python does: links stay
    source = _source(path, script)
    main = _new_main(str(Path(path).resolve().parent), [script, *arguments])
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __loader__=loader, __spec__=None, __cached__=None)

    def execute() -> None:
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102

    return execute


def _module(arguments: tuple[str, ...]) -> Callable[[], None]:
    """Likewise for `-m MODULE`; its packages are imported, and watched, when it runs."""
    if not arguments:
        raise UsageError("-m needs a module: tenure run -m package.module")
    main = _new_main(os.getcwd(), [MODULE, *arguments[1:]])  # noqa: PTH109  as Python does

    def execute() -> None:
        spec = _spec_of(arguments[0])
        loader: Any = spec.loader
        code = loader.get_code(spec.name)
        sys.argv[0] = str(spec.origin)
        main.__dict__.update(
            __file__=spec.origin,
            __loader__=loader,
            __spec__=spec,
            __cached__=spec.cached,
            __package__=spec.parent,
        )
        exec(code, main.__dict__)  # noqa: S102

    return execute


def _spec_of(name: str) -> importlib.machinery.ModuleSpec:
    """Where a module's code is, a package's in its `__main__`; ends as `python -m` if nowhere."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            return _spec_of(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of something that a package imports
        spec = None
    if spec is None or spec.loader is None:
        raise SystemExit(f"{sys.executable}: No module named {name}")
    return spec


def _source(path: str, script: str) -> bytes:
    try:
        with io.open_code(path) as file:
            return file.read()
    except OSError as error:
        raise BadInputError(f"{script}: cannot be read: {error.strerror}") from None


def _wait_for_threads() -> None:
    """Python ends when the script's threads have; what they hold belongs to the run."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _torch_is_there(watch: Watch, before: Callable[[], None] | None) -> None:
    """What was asked for first, then the watching; what cannot be had ends the script here."""
    if before is not None:
        try:
            before()
        except UsageError as error:
            sys.stderr.write(f"tenure: {error}\n")
            raise SystemExit(error.exit_code) from None
    watch.start()


def _look_at_the_end(watch: Watch, ended: BaseException | None) -> None:
    """While the script's objects, and the frames of what ended it, still live."""
    failed = ended is not None and not isinstance(ended, SystemExit)
    try:
        watch.look("failed" if failed else "end", error=ended)
        watch.finish()
    except KeyboardInterrupt:
        watch.record.missing.append("interrupted while the end state was looked at")


def _end(
    watch: Watch,
    process: int,
    code: int,
    report: Callable[[Run], None],
    *,
    error: str = "",
    interrupted: bool = False,
) -> Run:
    """Stops watching, and reports once, in the process that ran the script."""
    if not watch.started:
        reason = "it ended there" if "torch" in sys.modules else "torch was not imported"
        watch.record.missing.append(f"{reason}: nothing was watched")
    watch.stop()
    forked = os.getpid() != process
    run = Run(
        code,
        None if forked else watch.record,
        interrupted,
        error,
        _torch_version(),
        tuple(watch.race_findings()) if not forked else (),
    )
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    if not forked:
        _told(report, run)
    return run


def _told(report: Callable[[Run], None], run: Run) -> None:
    """Reports; whatever goes wrong with that costs one line, never the script's exit code."""
    if sys.stderr is None or sys.stderr.closed:  # the script's doing; the terminal is still there
        with contextlib.suppress(OSError):
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  open to the end
    try:
        report(run)
    except KeyboardInterrupt:
        _say("tenure: no report: interrupted while it was made\n")
    except TenureError as error:
        _say(f"tenure: {error}\n")
    except Exception as error:
        if os.environ.get("TENURE_DEBUG"):
            raise
        _say(
            f"tenure: no report, by a fault of tenure itself: {type(error).__name__}: {error} "
            "(TENURE_DEBUG=1 shows where)\n"
        )


def _say(text: str) -> None:
    """On stderr, where the script has left one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


@contextlib.contextmanager
def _reported_at_os_exit(end: Callable[[int], object]) -> Iterator[None]:
    """Reports before a script ends itself with os._exit, which runs no more Python."""
    leave, process = os._exit, os.getpid()

    def exit_now(status: int) -> None:
        if os.getpid() == process:
            os._exit = leave
            end(status)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.flush()
        leave(status)

    os._exit = exit_now  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave


def _torch_version() -> tuple[int, int] | None:
    torch = sys.modules.get("torch")
    parts = str(getattr(torch, "__version__", "")).split(".")[:2]
    return (int(parts[0]), int(parts[1])) if all(p.isdigit() for p in parts) and parts[1:] else None


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Acts once a module has been imported, at once if it has been already.

    The script decides when it imports torch, and what it sets in the environment before.
    """
    if name in sys.modules:
        act()
        return

    class Finder:
        asking = False

        @classmethod
        def find_spec(cls, wanted: str, *_: Any) -> Any:
            if wanted != name or cls.asking:
                return None
            cls.asking = True  # the finders behind this one are asked
            try:
                spec = importlib.util.find_spec(name)
            finally:
                cls.asking = False
            # Many libraries only ask whether there is a torch: nothing is done before it runs.
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                run = loader.exec_module

                def exec_module(module: types.ModuleType) -> None:
                    del loader.exec_module
                    if Finder in sys.meta_path:
                        sys.meta_path.remove(Finder)
                    run(module)
                    act()

                loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder)


def _new_main(folder: str, argv: list[str]) -> types.ModuleType:
    """A new `__main__`, and `sys` as the script expects it."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __doc__=None)
    sys.modules["__main__"] = main
    sys.argv = argv
    if not getattr(sys.flags, "safe_path", False):
        if sys.path:
            sys.path[0] = folder  # where the folder of the `tenure` command was
        else:
            sys.path.append(folder)
    return main


def _without_our_frames(error: BaseException) -> None:
    """Takes tenure's own frames off the front of a traceback."""
    trace = error.__traceback__
    while trace is not None and is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    error.__traceback__ = trace


def _exit_code(error: BaseException | None) -> int:
    """Prints an exception as Python would, and returns the exit code it leads to."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        if isinstance(error.code, int):
            return error.code & 0xFF
        _say(f"{error.code}\n")
        return 1
    sys.excepthook(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _die_of_interrupt() -> None:
    """Ends this process as Python does after Ctrl-C, so that a shell knows why."""
    _say("")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)

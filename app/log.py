"""Structured logs: one JSON object per line on stderr. Its member `event` says what happened."""

import logging
import sys
import threading
import traceback
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO

import msgspec
import structlog
from structlog.typing import EventDict


def configure(level: str) -> None:
    """Configures structlog and the standard library's logging. Call this before anything is logged.

    JSON escapes control characters, so that no name or header can forge a log line."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _describe_error,
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.BytesLoggerFactory(_LossyFile(sys.stderr.buffer)),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], level=logging.WARNING, force=True)


class _LossyFile:
    """A file that drops a line if writing it fails: the reader of the pipe has exited, or the disk
    is full.

    Otherwise a call could fail after its commit, because of a log line. The file has no buffer:
    Python would fail to write a buffer at exit, and change the exit status."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = getattr(file, "raw", file)

    def write(self, line: bytes) -> None:
        with suppress(OSError):
            while line and (written := self._file.write(line)):  # None if a non-blocking pipe is full
                line = line[written:]

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()


def log_warnings_and_crashes() -> None:
    """Writes warnings and uncaught exceptions as JSON lines, too.

    A log pipeline that reads the stderr of `serve` may expect JSON on every line."""
    logging.captureWarnings(True)
    sys.excepthook = _log_crash
    threading.excepthook = lambda args: log.error("thread crashed", exc_info=args.exc_value)
    sys.unraisablehook = lambda args: log.error("exception ignored", exc_info=args.exc_value)


def _log_crash(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    log.critical("broker crashed", exc_info=error)


class _Forward(logging.Handler):
    """Writes the log records of libraries (uvicorn, asyncio) as JSON lines."""

    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def _describe_error(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Adds the type, the message and the traceback of an exception to the log line.

    Removes the DETAIL that Postgres appends to a message, because it contains the row, with payload
    and lease token."""
    exc_info = event.pop("exc_info", None)
    error = exc_info[1] if isinstance(exc_info, tuple) else sys.exc_info()[1] if exc_info is True else exc_info
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["message"] = str(error).partition("\nDETAIL")[0]
        event["traceback"] = "".join(traceback.format_tb(error.__traceback__))
    return event


def _dumps(event: object, **_: object) -> bytes:
    return msgspec.json.encode(event, enc_hook=str)


log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

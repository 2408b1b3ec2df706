"""The command line: `mjp VERB …`. Parses, runs the verb, says what went wrong."""

import os
import sys

from mjp import __version__
from mjp.catalog import verbs
from mjp.core.errors import CheckpointError, MjpError, StoppedError
from mjp.parsing import parse

EXTRAS = {
    "matplotlib": "evaluate",
    "umap": "evaluate",
    "imagecorruptions": "evaluate",
    "cv2": "evaluate",
    "skimage": "demo",
    "datasets": "hub",
    "jinja2": "audit",
    "opacus": "audit",
    "lpips": "audit",
    "torchmetrics": "audit",
    "fastapi": "serve",
    "uvicorn": "serve",
}
"""Packages that only some verbs need, and the extra of mjp that brings each."""

DONE, FAILED, ASKED_WRONGLY, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line. Exits 0 when done, 1 when it failed, 2 when it was asked wrongly."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"mjp {__version__}")
        sys.exit(DONE)
    try:
        verb, options = parse(arguments, verbs())
        verb.run(options)
    except MjpError as error:
        sys.exit(_fail(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        extra = "demo" if arguments[:1] == ["demo"] else EXTRAS[package]
        _complain(f"this needs {package}: pip install 'mjp[{extra}]'")
        sys.exit(FAILED)
    except KeyboardInterrupt:
        _complain("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(FAILED)
    except OSError as error:
        _complain(str(error))
        sys.exit(FAILED)
    sys.exit(DONE)


def _fail(error: MjpError) -> int:
    """Says what went wrong; the exit status for it."""
    if isinstance(error, StoppedError):
        _complain(str(error))
        return 128 + error.number
    asked_wrongly = isinstance(error, ValueError) and not isinstance(error, CheckpointError)
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 or not asked_wrongly:  # All processes were asked the same; one complains.
        _complain(f"{error}" if rank == 0 else f"process {rank}: {error}")
    return ASKED_WRONGLY if asked_wrongly else FAILED


def _complain(text: str) -> None:
    print(f"mjp: {text}", file=sys.stderr)

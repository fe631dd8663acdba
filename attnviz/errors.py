"""The exceptions that attnviz raises on purpose.

Every message says what was expected, what was found and what to do. Only these are caught at the
edge (``attnviz.cli.runner.Run.ending``); anything else is a bug and keeps its traceback. Exit code 0 is done,
1 any other of these, 2 UsageError, 3 VerificationError, 130 interrupted (Ctrl-C, SIGTERM, SIGHUP).
"""

INTERRUPTED = 130  # exit code of a run that a signal ended


class AttnvizError(Exception):
    """Base of everything that attnviz raises on purpose; ``exit_code`` is the command line's."""

    exit_code = 1


class UsageError(AttnvizError):
    """An option or argument has a value outside its valid range."""

    exit_code = 2


class TextError(AttnvizError):
    """The text is empty, longer than the model, or not decodable."""


class CorpusError(AttnvizError):
    """A corpus cannot be read, is empty, or breaks the rules of its format; the message gives file and line."""


class CheckpointError(AttnvizError):
    """A checkpoint cannot be found, reached or read, or lacks weights."""


class ArchitectureError(CheckpointError):
    """The architecture, or one of its flags, is not among those that the reference reproduces."""


class DeviceError(AttnvizError):
    """The device, or the dtype on that device, is not available on this machine."""


class ParserError(AttnvizError):
    """The dependency parser is installed but cannot be used."""


class OutOfMemoryError(AttnvizError):
    """The machine, or the device, has less memory than was needed; see :mod:`attnviz.memory`."""


class ProcessError(AttnvizError):
    """Several processes were to share the work, but cannot, or one of them has stopped."""


class OutputError(AttnvizError):
    """The results cannot be written or printed; the message says what is on disk."""


class VerificationError(AttnvizError):
    """The recomputed heads do not reproduce the model's own attention."""

    exit_code = 3

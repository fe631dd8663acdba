"""The exceptions that attnviz raises, all of them meant to be read by a person.

    AttnvizError                what the user can mend                       exit 1
    ├── UsageError              an option has a value that cannot be         exit 2
    ├── TextError               the text is empty, too long, or not text     exit 1
    ├── CorpusError             the corpus cannot be read, or is malformed   exit 1
    ├── CheckpointError         no checkpoint, or not a whole one            exit 1
    │   └── ArchitectureError   one that the reference does not reproduce    exit 1
    ├── DeviceError             a device or dtype that is not to be had here exit 1
    ├── ParserError             the dependency parser cannot be used         exit 1
    ├── ProcessError            the processes of one run do not meet         exit 1
    ├── OutputError             the results cannot be written                exit 1
    └── VerificationError       the heads do not reproduce the model         exit 3

Every message says what was expected, what was found and what to do. Only these are caught at the
edge (``attnviz.cli.runner.errors_to_exit_codes``); anything else is a bug and keeps its traceback. Exit code 0 is done,
130 interrupted (Ctrl-C, SIGTERM, SIGHUP).
"""


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


class ProcessError(AttnvizError):
    """Several processes were to share the work, but cannot, or one of them has stopped."""


class OutputError(AttnvizError):
    """The results cannot be written or printed; the message says what is on disk."""


class VerificationError(AttnvizError):
    """The recomputed heads do not reproduce the model's own attention."""

    exit_code = 3

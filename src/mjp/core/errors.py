"""The errors that mjp raises: each says what was wrong, the value, and what to do."""


class MjpError(Exception):
    """Root of every error that mjp raises on purpose."""


class ConfigError(MjpError, ValueError):
    """A value that the caller chose cannot work."""


class UnsupportedModelError(MjpError, ValueError):
    """A backbone that no adapter of mjp knows."""


class CheckpointError(MjpError, ValueError):
    """A file of weights that is damaged, foreign, or does not fit the model."""


class DataError(MjpError):
    """Images or labels that cannot be used as they are."""


class TrainingError(MjpError):
    """A run that cannot go on, such as one whose loss is no number any more."""


class StoppedError(MjpError):
    """The run was asked to stop by a signal, has kept what was done, and can be resumed."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

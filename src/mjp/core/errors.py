"""The errors that mjp raises: each says what was wrong, the value, and what to do."""


class MjpError(Exception):
    """Root of every error that mjp raises on purpose."""


class ConfigError(MjpError, ValueError):
    """A value that the caller chose cannot work."""


class UnsupportedModelError(MjpError, ValueError):
    """A backbone that no adapter of mjp knows."""


class CheckpointError(MjpError, ValueError):
    """A file of weights that is damaged, foreign, or does not fit the model."""

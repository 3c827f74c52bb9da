"""Errors: each message says what is wrong, what was seen, and what to do."""


class CurlicueError(Exception):
    """Anything curlicue refuses to do; the message ends with a remedy."""


class ConfigError(CurlicueError, ValueError):
    """A setting that cannot work."""


class DataError(CurlicueError, ValueError):
    """Data that are missing, damaged or of the wrong kind."""


class RunError(CurlicueError):
    """A run directory or checkpoint that cannot be used as asked."""


class MissingExtraError(CurlicueError):
    """An optional package that is not installed."""

"""The errors that fedshed raises: each message says what is wrong, where it is wrong, and what to do."""


class Error(Exception):
    """Base class of every error that fedshed itself raises; catch it to catch all of them."""


class DataError(Error, ValueError):
    """A table, a label or a data file does not have the form that the model needs."""


class QuotingError(DataError):
    """A DataError whose message quotes a value of the table, so only the holder of the table may read it.

    `told` is the message for everybody else.
    """

    def __init__(
        self, message: str, told: str = "its table has a level that was not agreed on; prepare again"
    ) -> None:
        super().__init__(message)
        self.told = told


class UnreadableError(DataError):
    """A site cannot read its own table or file at the moment, whatever the request was."""


class ConfigError(Error, ValueError):
    """A name, a parameter or a combination of parameters that cannot work."""


class CodecError(Error):
    """The bytes are not a well-formed message, or the message has the wrong shape."""


class ProtocolError(Error):
    """An agent did not answer, or it sent an answer that the algorithm cannot use."""


class DisclosureError(Error):
    """A site's disclosure policy forbids the answer; the message names the rule and quotes no data."""


class SingularError(Error):
    """The pooled curvature is singular, so the model has no unique solution."""

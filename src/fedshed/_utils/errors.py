"""The errors of fedshed: a small tree, each message saying what is wrong, where, and what to do."""


class Error(Exception):
    """Any error raised by fedshed itself."""


class DataError(Error, ValueError):
    """A site's table, a label or a data file is not what the model needs."""


class QuotingError(DataError):
    """A DataError that quotes a value of the table, for whoever holds that table only.

    `told` is what others are told.
    """

    def __init__(
        self, message: str, told: str = "its table has a level that was not agreed on; prepare again"
    ) -> None:
        super().__init__(message)
        self.told = told


class UnreadableError(DataError):
    """A site cannot read its own table or file now, whatever it was asked."""


class ConfigError(Error, ValueError):
    """A name, parameter or combination of parameters that cannot work."""


class CodecError(Error):
    """Bytes that are not a well-formed message, or a message of the wrong shape."""


class ProtocolError(Error):
    """An agent answered with something the algorithm cannot use, or did not answer at all."""


class DisclosureError(Error):
    """A site's disclosure policy forbids the answer; the message names the rule, not what broke it."""


class SingularError(Error):
    """The pooled curvature is singular: the model has no unique solution."""

"""Functions that go wrong."""


def failing(error: BaseException):
    """A function that raises this error, whatever it is given."""

    def fail(*_, **__):
        raise error

    return fail

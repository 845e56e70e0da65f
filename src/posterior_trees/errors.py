"""The one error of this part: the data is missing, broken or does not fit the recipe."""


class DataError(ValueError):
    """A problem with the user's data; the message names the file and says what to do."""


class GuaranteeError(ValueError):
    """A promise that cannot be given, with the reason and what would allow it."""


class MeasureError(GuaranteeError):
    """A measure without a promise, or one that fails on an image."""

"""The one error of this part: the data is missing, broken or does not fit the recipe."""


class DataError(ValueError):
    """A problem with the user's data; the message names the file and says what to do."""

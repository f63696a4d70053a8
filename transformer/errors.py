"""The one exception that means "your input, not our code"."""


class UserError(ValueError):
    """An error in what the user gave: its message is one line that names the key, file or row,
    the value found and what would be valid. `launch.py` prints it and exits with code 2."""

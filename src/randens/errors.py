"""Errors that a person can act on, for scripts that catch them."""

from randens.core.errors import FileError, InputError, ModelError, RandensError, RandensWarning

__all__ = ["FileError", "InputError", "ModelError", "RandensError", "RandensWarning"]

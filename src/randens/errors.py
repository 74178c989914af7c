"""The errors of randens, for scripts that catch them."""

from randens.core.errors import FileError, InputError, ModelError, RandensError, RandensWarning

__all__ = ["FileError", "InputError", "ModelError", "RandensError", "RandensWarning"]

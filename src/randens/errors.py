"""The name that `randens.core.errors` had before; kept for scripts that use it."""

from randens.core.errors import *  # noqa: F403

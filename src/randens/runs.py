"""The name that `randens.core.runs` had before; kept for scripts that use it."""

from randens.core.runs import *  # noqa: F403

"""Other libraries: their attacks, scikit-learn's classifiers, one model for code that expects one."""

from randens.interop.attack_libraries import (
    from_adv_lib,
    from_art,
    from_autoattack,
    from_foolbox,
    from_torchattacks,
)
from randens.interop.sklearn_members import QueriedMember, sklearn_ensemble, sklearn_member

__all__ = [
    "QueriedMember",
    "from_adv_lib",
    "from_art",
    "from_autoattack",
    "from_foolbox",
    "from_torchattacks",
    "sklearn_ensemble",
    "sklearn_member",
]

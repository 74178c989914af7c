"""Small trained members, exported once for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from randens.deploy import Bundle

# Only the fixture below needs torch; most tests of this folder run without it.
if TYPE_CHECKING:
    from randens import RandomizedEnsemble


class Exported(NamedTuple):
    """An ensemble of two trained networks and its bundle."""

    rec: RandomizedEnsemble
    bundle: Bundle


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    from tests.evaluation.trained import digits, ensemble

    from randens import export

    rec = ensemble("convnet", "convnet").with_probs((0.7, 0.3))
    return Exported(rec, export(rec, digits("validation"), tmp_path_factory.mktemp("deploy") / "bundle"))

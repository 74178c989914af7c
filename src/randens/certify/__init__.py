"""Sound upper bounds on the risk: what no attack can do."""

from randens.certify.certifying import Certification, certify

__all__ = ["Certification", "certify"]

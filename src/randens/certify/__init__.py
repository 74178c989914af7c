"""Sound upper bounds on the risk, which no attack can exceed."""

from randens.certify.certifying import Certification, certify

__all__ = ["Certification", "certify"]

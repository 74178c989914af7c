"""Sound bounds on the risk, by interval bounds and CROWN, for members one by one and together."""

from randens.certificates.certification import Certification, certify

__all__ = ["Certification", "certify"]

"""Sound bounds on the risk: of members by interval bounds and CROWN, and of any classifier by the data."""

from randens.certificates.certification import Certification, ceiling, certify

__all__ = ["Certification", "ceiling", "certify"]

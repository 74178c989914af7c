"""Audits: can the numbers of an evaluation be trusted?"""

from randens.audits.audit import Audit, audit
from randens.audits.checks import Check

__all__ = ["Audit", "Check", "audit"]

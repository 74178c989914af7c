"""Checks whether the numbers of an evaluation can be trusted."""

from randens.audit.auditing import Audit, Check, audit
from randens.audit.random_model_checks import audit_stochastic

__all__ = ["Audit", "Check", "audit", "audit_stochastic"]

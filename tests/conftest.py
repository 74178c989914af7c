"""For every test: one torch thread, as several workers share the cores, and examples without deadlines."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)
# Timings on shared cores say nothing; examples are the same at every run, so that a failure can be repeated.
hypothesis.settings.register_profile("randens", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("randens")

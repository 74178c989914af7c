"""Ratios against peers and against the limit: one function per file, one table. See docs/benchmarks.md."""

"""randens against other libraries, textbook algorithms and known optima: `make bench`. See benchmarks/README.md."""

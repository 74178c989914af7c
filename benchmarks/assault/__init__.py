"""Attacks on the software itself: on its server, its readers and its processes."""

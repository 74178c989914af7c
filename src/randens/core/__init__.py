"""Common functions of all rooms: errors, files, locks, documents, run folders, progress, several
processes.
"""

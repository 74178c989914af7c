"""What every room stands on: errors, files, locks, documents, run folders, progress, several processes."""

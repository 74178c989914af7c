"""What every room uses: errors, files, locks, documents, run folders, progress, several processes."""

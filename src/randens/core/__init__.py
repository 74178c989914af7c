"""What all rooms use: errors, files, locks, documents, run folders, progress, several processes."""

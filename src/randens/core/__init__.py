"""What all layers use: errors, files, documents, run folders, progress, devices, several processes."""

"""What can be trained: a folder for each task."""

"""What every room needs and none of them is about: places, files, caches, child processes."""

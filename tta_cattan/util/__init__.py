"""What every room may use: errors, files, progress, registry, precision, and repairs of upstream packages."""

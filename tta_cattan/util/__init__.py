"""Shared tools: errors, files, progress, registry, precision, plug-ins, and fixes for upstream packages."""

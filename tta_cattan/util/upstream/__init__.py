"""The libraries that we build on, as they really install today."""

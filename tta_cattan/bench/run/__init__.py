"""Running a comparison: its plan of cells, what they share, their computation, and a dry run."""

"""The study behind ``docs/study.md``: every real shift at hand, baselines tuned on shifts that are not reported."""

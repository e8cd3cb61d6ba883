"""Monitoring a stream without labels, beside any method or network: estimates, and reactions to them."""

from tta_cattan.monitor.estimate import Calibration, Estimate, Reference
from tta_cattan.monitor.watch import EVENTS, Monitor, Reading, Tap

__all__ = ["EVENTS", "Calibration", "Estimate", "Monitor", "Reading", "Reference", "Tap"]

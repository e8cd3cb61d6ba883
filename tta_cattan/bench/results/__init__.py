"""What a finished cell is: store, predictions, identity, summaries and tables."""

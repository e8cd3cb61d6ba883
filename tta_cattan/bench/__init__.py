"""The bench: data sets, model zoo, source training, protocols, runs, results, report and the paper's studies."""

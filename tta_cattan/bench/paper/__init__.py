"""The paper's tables and figures as studies: our results beside the published ones."""

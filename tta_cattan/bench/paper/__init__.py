"""The paper's tables and figures as studies: what each runs, ours beside the published, the files it writes."""

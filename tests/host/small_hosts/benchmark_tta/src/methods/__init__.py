from .setup import *  # noqa: F403

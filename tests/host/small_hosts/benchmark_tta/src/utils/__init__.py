from .utils import *  # noqa: F403

from methods.tent import Tent

__all__ = ["Tent"]

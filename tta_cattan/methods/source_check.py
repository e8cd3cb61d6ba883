"""Whether a source subspace fits the model and the options that it is used with."""

from __future__ import annotations

from tta_cattan.alignment import Subspace
from tta_cattan.util.errors import UserError


def check_source(source: Subspace, dim: int, d: int, centering: str) -> Subspace:
    """Return ``source`` if it fits the features, d and the form of centring; otherwise say what does not fit."""
    if not isinstance(source, Subspace):
        raise UserError(
            f"source_subspace is {type(source).__name__} {str(source)[:60]!r}: give a Subspace, from "
            "fit_subspace(features) or Subspace.load(file)"
        )
    if not isinstance(d, int) or d < 0:
        raise UserError(f"d = {d!r}: the number of directions is a whole number, or 0 for the stability rule")
    if source.dim != dim:
        raise UserError(
            f"the source subspace is of {source.dim} features and the classifier takes {dim}: it was made for another "
            "model. Make one for this model with `tta-cattan fit-source`"
        )
    if source.count == 0:
        if centering == "shift":
            raise UserError(
                "CATTAN.CENTERING = 'shift' needs the mean source feature, which the classifier's row space lacks"
            )
        return source
    if d > source.d:
        raise UserError(f"CATTAN.D = {d}: the source subspace holds {source.d} directions; lower d or fit it with more")
    if source.centered != (centering != "none"):
        made = "centred (PCA)" if source.centered else "uncentred"
        raise UserError(
            f"CATTAN.CENTERING = {centering!r}, but the source subspace is {made}: fit it with the same centring"
        )
    if centering == "shift" and source.mean is None:
        raise UserError(
            "CATTAN.CENTERING = 'shift' needs the mean source feature, and this source subspace was saved without it: "
            "fit it anew or choose 'pca'"
        )
    return source

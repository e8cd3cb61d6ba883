"""The maths of subspace alignment: pure functions, small dataclasses of tensors, and the layers that apply it."""

from tta_cattan.alignment.aligned import (
    REDUCTIONS,
    Aligned,
    AlignedHead,
    AlignedLayer,
    alignment_cost,
    closed_form,
    fold_alignment,
    project_classifier,
)
from tta_cattan.alignment.classes import (
    TargetClasses,
    TargetSamples,
    balanced_limit,
    balancing_offset,
    change_weight,
    class_discriminants,
    fit_class_structure,
    left_out_densities,
    matching_temperature,
    may_be_balanced,
    sample_weight,
)
from tta_cattan.alignment.dimension import eigenvalue_gaps, select_dimension, stability_bound, stability_curve
from tta_cattan.alignment.fitting import (
    FeatureMoments,
    classifier_subspace,
    fit_source,
    fit_subspace,
    subspace_of_moments,
)
from tta_cattan.alignment.source_moments import SourceMoments, fit_source_moments
from tta_cattan.alignment.subspace import Subspace, orthonormality_error, reorthonormalize
from tta_cattan.alignment.tracker import SubspaceTracker

"""The recipes of twisted folds as scalar code: a module each.

initial(dtypes) gives the neutral state, one component for each lift and then what the recipe keeps besides; accumulate(scope, state,
elements) folds elements in; merge(scope, state, other) combines two states; join(scope, state, lanes) those of a group of lanes.
"""

from __future__ import annotations

from types import ModuleType

from emmy.lower.tile_to_kernel import first, moments, softmax

RECIPES: dict[str, ModuleType] = {"softmax": softmax, "moments": moments, "first": first}

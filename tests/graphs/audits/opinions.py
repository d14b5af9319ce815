"""Where TorchDynamo and gapless differ on the channels and footguns, and how each difference is settled.

What is not here is named, or noticed, by both, or by gapless alone.
"""

from __future__ import annotations


# How a difference is settled.
AUDITED = "an audit tells"
REFUSED = "the step is refused"
UNREAD = "no result follows from it"
WHOLE = "it cannot be replaced; what it holds is compared"
NAMED = "gapless compares it by another name"

_OF_A_METHOD = {"dict(type(L['self'].net.held_by_name._known['first']).__dict__)['k']": AUDITED}

# Reads and writes that TorchDynamo alone names, by channel or footgun; names without their frame.
ONLY_DYNAMO: dict[str, dict[str, str]] = {
    "named_tuple": {"held.k.k": WHOLE},
    "c_number": {"held.value": WHOLE},
    "partial_keywords": {"scaled.func": WHOLE, "scaled.args": WHOLE, "scaled.keywords": WHOLE},
    "cache_contents": {"read.__wrapped__": UNREAD},
    "local_of_a_generator": {
        "held.gi_frame": REFUSED,
        "held.gi_frame.f_locals": REFUSED,
        "held.gi_frame.f_locals['k']": REFUSED,
    },
    "mapping_proxy": {"held['k']": REFUSED},
    "import_in_the_step": {"__import_made_up_settings.k": NAMED},
    "effect on the host alone": {"self.net.numbers": REFUSED},
    "object given by a generator": _OF_A_METHOD,
    "object given for an item": _OF_A_METHOD,
    "a line in a log": {"self.net.log[0]": REFUSED, "self.net.log[1]": REFUSED},
    "partial object": {"self.net.partial.args": WHOLE, "self.net.partial.keywords": WHOLE},
    "cache that is cleared": {"self.net.cached.__wrapped__": UNREAD},
}

# Changes that results of TorchDynamo do not follow, but for what it refuses with an error.
MISSED_BY_DYNAMO = {
    "import_in_the_step",
    "metaclass_attribute",
    "patched_class_of_torch",
    "recursion_limit",
    "state_of_a_generator_of_random",
    "hook_of_a_module",
    "hook_of_all_modules",
}

# Those that guards of gapless do not see. With audits each is told.
MISSED_BY_GAPLESS = {
    "base_classes",
    "warnings_filters",
    "patched_math",
    "patched_builtin",
    "patched_torch_function",
    "patched_functional",
    "patched_tensor_method",
    "patched_operator_of_tensors",
    "patched_numpy_function",
    "position_in_a_file",
    "locale_of_the_process",
    "time_zone",
    "patched_clock",
    "recursion_limit",
    "thresholds_of_the_collector",
    "state_of_a_generator_of_random",
    "state_of_numpy_random",
    "numpy_error_state",
}

# TorchDynamo raises, or its graphs round in another way, from the first call on.
NO_OPINION = {"state_of_numpy_random", "count_of_an_optimizer"}

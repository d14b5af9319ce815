"""Cases that fail today, and what was seen: whoever mends one deletes its row."""

from __future__ import annotations


NOT_YET: dict[str, str] = {
    "objects-normal_on_self-step": "0 replays of the step: step is not captured: objects.py: self.distribution changes on the host, which a replay would skip; change it in `on_host`, or",
    "objects-normal_on_self-in_place": "0 replays of the model: Actor is not captured: objects.py: self.distribution changes on the host, which a replay would skip; change it in `on_host`, o",
    "objects-normal_that_validates-step": "0 replays of the step: step is not captured: objects.py: self.distribution changes on the host, which a replay would skip; change it in `on_host`, or",
    "objects-normal_that_validates-in_place": "0 replays of the model: Actor is not captured: objects.py: self.distribution changes on the host, which a replay would skip; change it in `on_host`, o",
    "objects-squashed_on_self-step": "0 replays of the step: step is not captured: objects.py: self.distribution changes on the host, which a replay would skip; change it in `on_host`, or",
    "objects-squashed_on_self-in_place": "0 replays of the model: Squashed is not captured: objects.py: self.distribution changes on the host, which a replay would skip; change it in `on_host`",
    "objects-categorical_returned-in_place": "0 replays of the model: Returns is not captured: the step returns a torch.distributions.categorical.Categorical, which a replay cannot make anew; retu",
    "objects-bernoulli_and_value-in_place": "0 replays of the model: Returns is not captured: the step returns a torch.distributions.bernoulli.Bernoulli, which a replay cannot make anew; return t",
    "objects-tanh_normal_returned-in_place": "0 replays of the model: Returns is not captured: the step returns a torch.distributions.transformed_distribution.TransformedDistribution, which a repl",
    "objects-two_distributions_in_a_dict-in_place": "0 replays of the model: Returns is not captured: the step returns a torch.distributions.normal.Normal, which a replay cannot make anew; return tensors",
    "objects-plain_object-in_place": "0 replays of the model: Returns is not captured: the step returns a anybody.objects.Result, which a replay cannot make anew; return tensors, plain val",
    "objects-slotted-in_place": "0 replays of the model: Returns is not captured: the step returns a anybody.objects.Slotted, which a replay cannot make anew; return tensors, plain va",
    "objects-namespace-in_place": "0 replays of the model: Returns is not captured: the step returns a types.SimpleNamespace, which a replay cannot make anew; return tensors, plain valu",
    "objects-object_left_on_self-step": "0 replays of the step: step is not captured: objects.py: model.last changes on the host, which a replay would skip; change it in `on_host`, or outside",
    "objects-object_left_on_self-in_place": "0 replays of the model: LeavesOnSelf is not captured: objects.py: self.last changes on the host, which a replay would skip; change it in `on_host`, or",
    "objects-namespace_left_on_self-step": "0 replays of the step: step is not captured: objects.py: model.losses changes on the host, which a replay would skip; change it in `on_host`, or outsi",
    "objects-namespace_left_on_self-in_place": "0 replays of the model: LeavesOnSelf is not captured: objects.py: model.losses changes on the host, which a replay would skip; change it in `on_host`,",
    "objects-attention_maps_on_self-in_place": "0 replays of the model: LeavesOnSelf is not captured: objects.py: the module keeps model.attentions from call to call; write into it with `copy_()`, o",
    "objects-losses_in_a_dict_on_self-in_place": "0 replays of the model: LeavesOnSelf is not captured: objects.py: the module keeps model.losses from call to call; write into it with `copy_()`, or re",
    "objects-dataclass_on_self-in_place": "0 replays of the model: LeavesOnSelf is not captured: objects.py: the module keeps self.last from call to call; write into it with `copy_()`, or retur",
    "objects-codes_are_rebound-step": "0 replays of the step: step is not captured: objects.py: self.ema_w changes on the host, which a replay would skip; keep it on the device, or change i",
    "objects-codes_are_rebound-in_place": "0 replays of the model: Codes is not captured: objects.py: self.ema_w changes on the host, which a replay would skip; keep it on the device, or change",
    "objects-old_weight_norm-step": "0 replays of the step: step is not captured: model.1.weight (conv.py) changed (changes so far: 4 times), and a graph keeps what it was captured with;",
    "objects-old_weight_norm-in_place": "0 replays of the model: Sequential is not captured: its part 1 (Conv1d) has a hook, which a replay would not call; set it on the captured module's out",
    "objects-old_weight_norm_of_linear-step": "0 replays of the step: step is not captured: model.2.weight (linear.py) changed (changes so far: 4 times), and a graph keeps what it was captured with",
    "objects-old_weight_norm_of_linear-in_place": "0 replays of the model: Sequential is not captured: its part 2 (Linear) has a hook, which a replay would not call; set it on the captured module's out",
    "objects-old_spectral_norm-step": "0 replays of the step: step is not captured: model.1.weight (conv.py) changed (changes so far: 4 times), and a graph keeps what it was captured with;",
    "objects-old_spectral_norm-in_place": "0 replays of the model: Sequential is not captured: its part 1 (Conv1d) has a hook, which a replay would not call; set it on the captured module's out",
    "objects-average_within_the_step": "0 replays of the step: step is not captured: average.n_averaged changes on the host, which a replay would skip; change it in `on_host`, or outside the",
    "objects-entry_of_a_given_dict": "0 replays of the model: Pooled is not captured: the module changes a tensor that it is given; change a copy",
    "objects-number_is_an_argument": "no line says all of ('argument 'n'', 'int', 'new in each call'): captured 0 graphs in 0.0 s, 0 steps replayed, 10 ran as written",
}

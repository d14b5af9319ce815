"""What torch's functions and methods return, and which of them wait, by name."""

from __future__ import annotations

import re

from gapless.device.waiting_operations import READING_METHODS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Known on the host without asking the device.
HOST_ATTRIBUTES = _words(
    """
    shape dtype ndim requires_grad is_cuda is_cpu is_leaf is_sparse is_quantized is_mps is_meta
    is_nested layout itemsize nbytes names grad_fn retains_grad output_nr _version training
    in_features out_features num_features embedding_dim num_embeddings config
    """
)
HOST_METHODS = _words(
    """
    size dim numel nelement stride is_contiguous data_ptr element_size ndimension get_device
    storage_offset is_floating_point is_complex is_pinned is_signed is_shared is_set_to storage
    untyped_storage register_hook backward record_stream __len__ numpy retain_grad has_names
    is_same_size is_inference is_conj is_neg
    """
)
# Attributes that are tensors, whatever they belong to.
TENSOR_ATTRIBUTES = _words("grad weight bias logits loss in_proj_weight")

# Methods that nothing but a tensor has: not numpy's arrays, and no module.
TENSOR_METHODS = _words(
    """
    detach unsqueeze softmax log_softmax contiguous masked_fill topk sigmoid abs norm square
    scatter_add_ index_select view bmm matmul type_as
    """
)
MASK_METHODS = _words(
    """
    eq ne lt gt le ge isnan isinf isfinite logical_and logical_or logical_not logical_xor bool
    any all isclose not_equal equal_ greater less greater_equal less_equal signbit
    bernoulli_bool isin
    """
)
KEEP_MASK = _words(
    """
    detach clone view reshape flatten unsqueeze squeeze expand expand_as permute transpose t
    contiguous to cuda repeat unbind chunk split
    """
)
# Of masks these make a mask.
JOIN_MASKS = _words("cat concat stack hstack vstack repeat_interleave roll flip")

# One value, or all, are brought to the host: the cause by the name of the method.
READS = {name: cause for name, cause in READING_METHODS.items() if not name.startswith("__")}
# The size of the result is counted on the device.
SHAPES = _words(
    """
    nonzero argwhere unique unique_consecutive masked_select bincount repeat_interleave
    """
)
# The same, where only tensors have a method of this name.
TENSOR_SHAPES = _words("nonzero argwhere unique_consecutive masked_select bincount")
EQUALS = _words("equal allclose is_nonzero")
LINALG = _words(
    """
    inv inverse cholesky solve lstsq eig eigh eigvals eigvalsh svd svdvals pinv matrix_rank
    cholesky_inverse tensorinv tensorsolve
    """
)
LINALG_SURELY = _words("inv inverse cholesky lstsq")

# What makes a new tensor, on the host if no device is named.
FACTORIES = _words(
    """
    zeros ones rand randn randint arange linspace logspace full empty eye randperm tensor
    as_tensor normal asarray tril_indices triu_indices empty_strided complex hann_window
    hamming_window sparse_coo_tensor scalar_tensor from_numpy frombuffer range Tensor
    FloatTensor LongTensor IntTensor BoolTensor DoubleTensor ByteTensor HalfTensor ShortTensor
    cartesian_prod
    """
)
# Factories that take Python values, which are copied to the device.
FROM_VALUES = _words("tensor as_tensor asarray")
# Factories whose first arguments are sizes or bounds: a tensor there is read.
SIZED = _words("zeros ones rand randn arange linspace full empty eye randperm")

# Functions of torch that return nothing of the device.
HOST_FUNCTIONS = _words(
    """
    is_tensor is_grad_enabled is_floating_point is_complex finfo iinfo Size dtype numel
    manual_seed seed no_grad enable_grad inference_mode set_grad_enabled set_num_threads
    get_num_threads Generator get_default_dtype set_default_dtype autocast is_autocast_enabled
    initial_seed get_rng_state set_rng_state use_deterministic_algorithms save
    set_float32_matmul_precision set_printoptions result_type can_cast promote_types
    broadcast_shapes is_inference_mode_enabled is_storage set_default_device
    set_default_tensor_type
    """
)
HOST_NAMESPACES = (
    "torch.backends",
    "torch.accelerator",
    "torch.distributed",
    "torch.profiler",
    "torch.version",
    "torch.hub",
    "torch.multiprocessing",
    "torch.onnx",
    "torch.jit",
    "torch._dynamo",
    "torch.random",
    "torch.utils.cpp_extension",
)
# Modules whose functions return numbers, strings and arrays.
HOST_MODULES = _words(
    """
    numpy math os sys time json re array pathlib pandas scipy sklearn cv2 PIL random string
    datetime tqdm argparse logging warnings platform struct hashlib uuid glob shutil csv yaml
    matplotlib statistics operator soundfile librosa nltk sacrebleu seaborn skimage imageio
    """
)
RETURN_THE_FIRST = _words(
    "copy.deepcopy copy.copy functools.partial tqdm.tqdm tqdm.auto.tqdm tqdm.notebook.tqdm tqdm.rich.tqdm "
    "rich.progress.track"
)
HOST_BUILTINS = _words(
    """
    len isinstance issubclass id hash type hasattr callable open input chr ord hex dir vars
    super property slice staticmethod classmethod round divmod
    """
)

# Functions of numpy that return an array, where others may return a number.
MAKES_ARRAY = re.compile(
    r"\.(arange|array|asarray|zeros|ones|full|linspace|argsort|argwhere|flatnonzero|permutation|choice"
    r"|randint|normal|random|repeat|tile|concatenate|stack|unique|where|eye|triu|tril)$"
)

# Of these, what draws one number where no size is given: the place of the size, and its name.
DRAWS_ONE = {
    "numpy.random.choice": (1, "size"),
    "numpy.random.randint": (2, "size"),
    "numpy.random.normal": (2, "size"),
    "numpy.random.random": (0, "size"),
}

# Methods of a module that return the module, and those that compute as a call does.
SAME_MODULE = _words("train eval requires_grad_ half float double bfloat16 apply share_memory")
MODULE_CALLS = _words("forward generate encode decode sample predict __call__")
ADD_TO_LISTS = _words("append add appendleft insert extend")
OF_LISTS = _words("pop popleft get setdefault __next__")

# Methods that take sizes: a tensor there is read.
TAKE_SIZES = _words("expand repeat view reshape new_zeros new_ones new_full new_empty narrow")

# Optimizers that read values of the device in `step`.
READING_OPTIMIZERS = _words(
    """
    torch.optim.Adafactor torch.optim.LBFGS torch.optim.SparseAdam torch.optim.ASGD
    torch.optim.lr_scheduler.ReduceLROnPlateau
    """
)
SYNCHRONIZE = {
    "torch.cuda.synchronize": "device",
    "torch.accelerator.synchronize": "device",
    "torch.mps.synchronize": "device",
    "torch.xpu.synchronize": "device",
    "torch.cuda.empty_cache": "empty_cache",
    "torch.accelerator.empty_cache": "empty_cache",
    "torch.accelerator.memory.empty_cache": "empty_cache",
}
# Hooks of tensors, and of modules: their functions run in each step, with tensors of the device.
HOOKS = re.compile(
    r"register_(hook|(full_)?backward_(pre_)?hook|forward_(pre_)?hook|post_accumulate_grad_hook"
    r"|multi_grad_hook)$"
)

"""`--kv-bits`: attention layers are packed once they are long enough."""

from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.quantized_kv_cache import QuantizedKVCache
from cachesim.engines.mlx_lm.caches.rotating_kv_cache import RotatingKVCache
from cachesim.engines.mlx_lm.generate.shared import PromptCache
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.model.arithmetic import Network
from cachesim.model.layers.rope import halves_order


def quantize(options: MlxOptions, network: Network, cache: PromptCache) -> None:
    """Pack the layers of a list in place. Follows `maybe_quantize_kv_cache`.

    Rings refuse; recurrent layers, and lists of caches, are passed over.
    """
    if options.kv_bits is None:
        return
    for index, (shape, layer) in enumerate(zip(network.shapes, cache, strict=False)):
        long = getattr(layer, "offset", -1) >= options.quantized_kv_start
        if shape.marks or not long or isinstance(layer, QuantizedKVCache):
            continue
        if isinstance(layer, RotatingKVCache):
            layer.to_quantized(options.kv_group_size, options.kv_bits)
        elif isinstance(layer, KVCache):
            packed = QuantizedKVCache(layer.rules, options.kv_group_size, options.kv_bits)
            packed.key_order = halves_order(network.spec)
            packed.take(layer, shape.key)
            cache[index] = packed

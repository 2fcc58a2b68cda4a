"""The kernel matrix by neural-tangents; `benchmarks.speed.kernel` runs this file in an interpreter that has that library."""

# pyright: reportMissingImports=false
import json
import os
import sys
import time


def main(folder: str) -> None:
    import jax
    import jax.numpy as jnp
    import neural_tangents as nt
    import numpy as np

    case = np.load(os.path.join(folder, "case.npz"))
    x, gains, beta = jnp.asarray(case["x"]), case["gains"].tolist(), 87.09
    params = [
        {kind: jnp.asarray(case[f"{kind}{i}"]) for kind in ("weight", "bias") if f"{kind}{i}" in case}
        for i in range(len(gains))
    ]

    def network(params, x):
        for i, (layer, gain) in enumerate(zip(params, gains)):  # noqa: B905
            if i:
                x = jax.nn.softplus(beta * x) / beta
            x = gain * x @ layer["weight"].T + layer.get("bias", 0.0)
        return x

    seconds, kernel = {}, None
    for implementation in (
        nt.NtkImplementation.JACOBIAN_CONTRACTION,
        nt.NtkImplementation.NTK_VECTOR_PRODUCTS,
        nt.NtkImplementation.STRUCTURED_DERIVATIVES,
    ):
        compute = jax.jit(nt.empirical_ntk_fn(network, trace_axes=(), vmap_axes=0, implementation=implementation))
        times = []
        compute(x, None, params).block_until_ready()
        for _ in range(3):
            start = time.perf_counter()
            kernel = compute(x, None, params).block_until_ready()
            times.append(time.perf_counter() - start)
        seconds[implementation.name] = min(times)
    np.save(os.path.join(folder, "kernel.npy"), np.asarray(kernel).reshape(len(x), len(x)))
    print(json.dumps({"seconds": seconds, "jax": jax.__version__, "neural_tangents": nt.__version__}))


if __name__ == "__main__":
    main(sys.argv[1])

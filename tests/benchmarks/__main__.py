"""Every benchmark, one after the other: `make bench`."""

from . import bench_boltzmann, bench_coherent, bench_evidence, bench_explorer, bench_optics, bench_overlaps, bench_training

for module in (bench_training, bench_evidence, bench_optics, bench_coherent, bench_overlaps, bench_explorer, bench_boltzmann):
    module.main()
    print()

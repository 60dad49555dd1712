"""Every benchmark, one after the other: `make bench`."""

from . import bench_evidence, bench_training

for module in (bench_training, bench_evidence):
    module.main()
    print()

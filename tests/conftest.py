"""Every test runs on one thread, without a screen, on profile `quick` unless it says otherwise."""

import os

os.environ["MPLBACKEND"] = "agg"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("BORNLIB_PROFILE", "quick")

import pytest
import torch

from bornlib.corpus import data_folder

torch.set_num_threads(1)


def pytest_configure(config):
    config.addinivalue_line("markers", "real: needs e-SNLI's files ($BORNLIB_DATA or data/esnli); not collected without them")


def pytest_collection_modifyitems(config, items):
    """Tests marked `real` are left out where e-SNLI is not there: nothing on the spot could make them run."""
    if data_folder() is not None:
        return
    real = [item for item in items if item.get_closest_marker("real")]
    if real:
        config.hook.pytest_deselected(items=real)
        items[:] = [item for item in items if not item.get_closest_marker("real")]


@pytest.fixture(scope="session")
def real():
    """The folder with e-SNLI's files; for tests marked `real`."""
    return data_folder()

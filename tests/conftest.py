"""Every test runs on one thread, without a screen, on profile `quick` unless it says otherwise."""

import os

os.environ["MPLBACKEND"] = "agg"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("BORNLIB_PROFILE", "quick")

import pytest
import torch

from bornlib import minicorpus, models, training
from bornlib.corpus import Vocabulary, data_folder

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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint file of a small untrained Born Transformer: what is shown of it can be checked for any weights."""
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.safetensors"
    pairs = minicorpus.load_split("dev").pairs[:300]
    vocabulary = Vocabulary.from_pairs(pairs)
    model = models.build("born", len(vocabulary), 3)
    training.save_checkpoint(path, model, vocabulary, training.Recipe("born", 3), {"train_pairs": 300, "epochs": []})
    return path

"""Samplers against the softmax, the bridge against the untouched model, broken samplers that must be rejected, and five silent corruptions."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats

from bornlib import boltzmann, boltzmann_figures, frozen
from bornlib.boltzmann import BACKENDS, draw, sampled, verify


@pytest.fixture(scope="module")
def small():
    """A LLaMA of random weights, its tokenizer and 24 token ids."""
    model, tokenizer = frozen.miniature()
    ids = torch.randint(0, 250, (1, 24), generator=torch.Generator().manual_seed(1))
    return model, tokenizer, ids


@pytest.fixture(scope="module")
def real():
    """SmolLM2-135M-Instruct; skipped only where its package can't be downloaded."""
    try:
        return frozen.load(progress=False)
    except frozen.ModelUnavailable as error:
        pytest.skip(str(error))


def weights_of(model, ids, layer):
    """Attention weights (heads * n, n) of a layer as transformers itself returns them."""
    with torch.no_grad():
        return model(ids, output_attentions=True).attentions[layer][0].reshape(-1, ids.shape[1]).numpy()


class TestSamplers:
    @pytest.mark.parametrize("backend", ["exact", "gumbel", "thrml"])
    @pytest.mark.parametrize("size", [5, 20, 300])
    def test_counts_are_draws_from_the_softmax(self, backend, size):
        logits = boltzmann.causal_logits(size, heads=2)[:128] if size < 300 else boltzmann.causal_logits(size, heads=1)[-24:]
        draws = 4000 if size < 300 else 1000
        counts = draw(logits, draws, backend, (size, 3))
        assert counts.shape == logits.shape and (counts.sum(1) == draws).all()
        assert not counts[~np.isfinite(logits)].any()
        assert not verify(logits, counts).rejected
        if size == 300:
            assert counts[:, 256:].sum() > 0.5 * (boltzmann.softmax(logits)[:, 256:].sum() * draws), (
                "keys past 255 get their share"
            )

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_same_seed_same_counts_and_another_seed_others(self, backend):
        logits = boltzmann.causal_logits(16, heads=2)
        first, again, other = (draw(logits, 50, backend, seed) for seed in ((1, 2), (1, 2), (1, 3)))
        assert np.array_equal(first, again) and not np.array_equal(first, other)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_masked_keys_are_never_drawn_wherever_they_are(self, backend):
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(40, 9))
        masked = rng.random((40, 9)) < 0.5
        masked[np.arange(40), rng.integers(0, 9, 40)] = False
        logits[masked] = -np.inf
        logits[:, 3] = np.where(
            masked[:, 3], -np.inf, 60.0
        )  # almost all weight on one key: rounding must not leave a draw for the last
        counts = draw(logits, 300, backend, 5)
        assert not counts[masked].any() and (counts.sum(1) == 300).all()

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_one_key_one_draw(self, backend):
        assert draw(np.zeros((3, 1)), 1, backend).tolist() == [[1]] * 3

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_logits_may_be_large(self, backend):
        logits = np.array([[900.0, 0.0, -900.0], [-1e30, 0.0, 0.0]])
        counts = draw(logits, 40, backend)
        assert counts[0].tolist() == [40, 0, 0] and counts[1, 0] == 0

    def test_memory_does_not_grow_with_the_draws(self):
        """The third corruption: a one-hot array of every draw would need 40 * 64 * 20,000 * 4 bytes, 195 MiB."""
        logits = boltzmann.causal_logits(64, heads=1)[-40:]
        tracemalloc.start()
        draw(logits, 20_000, "gumbel")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20

    @pytest.mark.parametrize(
        ("logits", "told"),
        [
            (np.zeros(3), "rows and keys"),
            (np.zeros((0, 3)), "rows and keys"),
            (np.array([[0.0, np.nan]]), "no NaN"),
            (np.array([[0.0, np.inf]]), "no NaN"),
            (np.array([[0.0, 1.0], [-np.inf, -np.inf]]), "finite entry"),
        ],
    )
    def test_logits_that_are_no_distribution_are_refused(self, logits, told):
        with pytest.raises(ValueError, match=f"^logits: expected.*{told}"):
            draw(logits, 3)

    @pytest.mark.parametrize("wrong", [0, -1, 2.5, True, None])
    def test_draws_are_a_whole_number_from_one_on(self, wrong):
        with pytest.raises(ValueError, match="^draws: expected a whole number K >= 1, got"):
            draw(np.zeros((1, 2)), wrong)

    def test_an_unknown_backend_is_refused(self):
        with pytest.raises(ValueError, match="^backend: expected one of .*'thrml'.*got 'metal'"):
            draw(np.zeros((1, 2)), 1, "metal")


class TestRestrictedBoltzmannMachine:
    def test_the_visible_marginal_is_the_softmax(self):
        """Summed over all 2^H hidden states one by one."""
        logits = np.random.default_rng(2).normal(size=(5, 7))
        W, c = boltzmann.rbm_weights(7)
        b = boltzmann.rbm_biases(logits, W, c)
        states = np.array(list(np.ndindex(*(2,) * len(c))))
        joint = np.exp(b[:, :, None] + (c @ states.T)[None, None] + (states @ W).T[None])
        marginal = joint.sum(2) / joint.sum((1, 2))[:, None]
        assert np.abs(marginal - boltzmann.softmax(logits)).max() < 1e-13

    def test_its_draws_are_right_but_correlated(self):
        logits = boltzmann.causal_logits(12, heads=4)
        chain = np.stack(list(boltzmann.rbm_chain(logits, 20, 430, 1)))[30:]
        shares = np.stack([np.bincount(row.ravel(), minlength=12) / row.size for row in chain.transpose(1, 0, 2)])
        assert np.abs(shares - boltzmann.softmax(logits)).max() < 0.03
        values = np.take_along_axis(logits, chain.transpose(1, 0, 2).reshape(len(logits), -1), 1).reshape(len(logits), 400, 20)
        tau = np.mean([boltzmann.autocorrelation_time(v) for v in values])
        assert 1.02 < tau < 3

    def test_autocorrelation_time_of_a_known_chain(self):
        rng, x = np.random.default_rng(0), np.zeros((4000, 50))
        for k in range(1, len(x)):
            x[k] = 0.6 * x[k - 1] + rng.standard_normal(50)
        assert boltzmann.autocorrelation_time(x) == pytest.approx((1 + 0.6) / (1 - 0.6), rel=0.1)
        assert boltzmann.autocorrelation_time(rng.standard_normal((2000, 50))) < 1.1
        assert boltzmann.autocorrelation_time(np.ones((50, 2))) == 1


class TestBridge:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_alpha_zero_is_the_untouched_model_bit_by_bit(self, small, backend):
        model, _, ids = small
        before = boltzmann.last_logits(model, ids)
        with sampled(model, range(4), backend, draws=3, blend=0.0) as trace:
            inside = boltzmann.last_logits(model, ids)
        assert np.array_equal(before, inside) and trace.calls == 4 and trace.rows == 4 * 4 * 24
        assert not np.array_equal(before, self.at_alpha_one(model, ids)), "with alpha = 1 it is another"

    @staticmethod
    def at_alpha_one(model, ids):
        with sampled(model, 1, draws=3):
            return boltzmann.last_logits(model, ids)

    def test_the_sampler_is_given_the_models_own_weights(self, small):
        model, _, ids = small
        for layer in range(4):
            logits = boltzmann.capture(model, ids, layer)
            assert np.abs(boltzmann.softmax(logits) - weights_of(model, ids, layer)).max() < 1e-6
            assert np.array_equal(np.isfinite(logits), np.tile(np.tri(24, dtype=bool), (4, 1))), "causal"

    def test_frequencies_stand_where_the_weights_were(self, small):
        """alpha = 1 with ever more draws comes back to the model; with one draw every weight is 0 or 1."""
        model, _, ids = small
        with sampled(model, 2, draws=1), torch.no_grad():
            weights = model(ids, output_attentions=True).attentions[2]
        assert set(np.unique(weights.numpy())) == {0.0, 1.0}
        with sampled(model, 2, draws=10**9):
            many = boltzmann.last_logits(model, ids)
        assert np.abs(many - boltzmann.last_logits(model, ids)).max() < 1e-2

    def test_later_tokens_change_nothing_before_them(self, small):
        """Fails where the mask is not registered with the attention function."""
        model, _, ids = small
        changed = ids.clone()
        changed[0, 20:] = (changed[0, 20:] + 1) % 250
        with sampled(model, 1, draws=10):
            a, b = boltzmann.last_logits(model, ids), boltzmann.last_logits(model, changed)
        assert np.array_equal(a[:20], b[:20]) and not np.array_equal(a[20:], b[20:])

    def test_draws_of_a_layer_do_not_depend_on_other_layers(self, small):
        model, _, ids = small
        seen = []
        for layers in ((1,), (1, 3), (3, 1, 2)):
            with sampled(model, layers, draws=20, observe=lambda at, logits, counts: seen.append(counts) if at == 1 else None):
                boltzmann.last_logits(model, ids)
        assert np.array_equal(seen[0], seen[1]) and np.array_equal(seen[0], seen[2])

    def test_a_step_through_the_cache_draws_from_all_keys(self, small):
        """The second corruption: with one query Sq and Sk must not be confused; grouped queries included."""
        model, _, ids = small
        shapes, used = [], np.zeros(24, int)

        def look(layer, logits, counts):
            shapes.append(logits.shape)
            used[: counts.shape[1]] += counts.sum(0)

        logits, seconds, trace = boltzmann.through_cache(model, ids, 16, 2, draws=200, observe=look)
        assert shapes == [(4, n) for n in range(17, 25)] and (used > 0).sum() > 12
        assert logits.shape == (8, 257) and seconds > 0 and trace.calls == 8

    def test_cache_and_single_pass_agree(self, small):
        model, _, ids = small
        whole = boltzmann.last_logits(model, ids)
        assert np.abs(boltzmann.through_cache(model, ids, 10)[0] - whole[10:]).max() < 1e-4

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_generate_is_deterministic_and_has_its_own_draws_a_step(self, small, backend):
        model, _, ids = small
        runs = []
        for seed in (0, 0, 1):
            with sampled(model, (0, 3), backend, draws=2, seed=seed) as trace:
                runs.append(boltzmann.answer(model, ids, 6))
        assert torch.equal(runs[0][0], runs[1][0]) and np.array_equal(runs[0][1], runs[1][1])
        assert not np.array_equal(runs[0][1], runs[2][1]) and trace.calls == 2 * 6

    def test_padding_on_the_left(self, small):
        """A padded batch draws nothing from padding, and rows that see nothing do no harm."""
        model, _, ids = small
        padded = torch.cat([torch.full((1, 3), 256), ids[:, :-3]], 1)
        batch, mask = torch.cat([ids, padded]), torch.ones(2, 24, dtype=torch.long)
        mask[1, :3] = 0
        seen = {}
        with (
            sampled(model, 1, draws=30, observe=lambda at, logits, counts: seen.update(logits=logits, counts=counts)),
            torch.no_grad(),
        ):
            out = model(batch, attention_mask=mask, use_cache=False).logits
        counts = seen["counts"].reshape(2, 4, 24, 24)
        assert not counts[1, :, 3:, :3].any() and counts[0, :, :, :3].any() and torch.isfinite(out).all()

    def test_everything_is_restored_also_after_an_error(self, small):
        model, _, ids = small
        before, state = boltzmann.last_logits(model, ids), {k: v.clone() for k, v in model.state_dict().items()}
        with pytest.raises(KeyError), sampled(model, 1, draws=5):
            boltzmann.last_logits(model, ids)
            raise KeyError
        assert model.config._attn_implementation == "eager"
        assert not any(hasattr(m, "boltzmann") for m in model.modules())
        assert np.array_equal(boltzmann.last_logits(model, ids), before)
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"layers": 4}, r"layers: expected numbers from 0 to 3, got 4"),
            ({"layers": -1}, r"layers: expected"),
            ({"layers": ()}, r"layers: expected"),
            ({"layers": True}, r"layers: expected"),
            ({"layers": 0, "blend": 1.5}, r"blend: expected alpha in \[0, 1\], got 1.5"),
            ({"layers": 0, "blend": math.nan}, r"blend: expected"),
            ({"layers": 0, "draws": 0}, r"draws: expected a whole number K >= 1, got 0"),
            ({"layers": 0, "backend": "metal"}, r"backend: expected one of"),
        ],
    )
    def test_wrong_settings_are_refused_before_anything_runs(self, small, settings, told):
        with pytest.raises(ValueError, match=f"^{told}"), sampled(small[0], **settings):
            pass
        assert small[0].config._attn_implementation == "eager"

    def test_other_models_are_refused(self, small, tmp_path):
        from transformers import GPT2Config, GPT2LMHeadModel

        other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, n_positions=8))
        with pytest.raises(ValueError, match="^model: expected LLaMA architecture.*'gpt2'"), sampled(other, 0):
            pass
        other.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="expected LLaMA architecture.*'gpt2'"):
            frozen.load(str(tmp_path))
        small[0].set_attn_implementation("sdpa")
        try:
            with pytest.raises(ValueError, match="expected attention 'eager'.*'sdpa'"), sampled(small[0], 0):
                pass
        finally:
            small[0].set_attn_implementation("eager")
        with pytest.raises(ValueError, match="expected attention 'eager'"), sampled(small[0], 0), sampled(small[0], 1):
            pass

    def test_start_lies_inside(self, small):
        with pytest.raises(ValueError, match="^start: expected 1 to 23, got 24"):
            boltzmann.through_cache(small[0], small[2], 24)


class TestVerification:
    def test_chi_square_is_scipys_where_nothing_is_pooled(self):
        logits = np.random.default_rng(1).normal(size=(6, 8)) * 0.3
        counts = draw(logits, 4000)
        statistic, dof, p = boltzmann.chi_square(logits, counts)
        for row in range(6):
            theirs = stats.chisquare(counts[row], boltzmann.softmax(logits[row]) * 4000)
            assert (statistic[row], dof[row], p[row]) == pytest.approx((theirs.statistic, 7, theirs.pvalue))

    def test_small_cells_are_pooled_not_dropped(self):
        p = np.array([[0.5, 0.4, 0.06, 0.03, 0.01]])
        counts = np.array([[50, 30, 10, 6, 4]])
        statistic, dof, _ = boltzmann.chi_square(np.log(p), counts)
        # 3 and 1 are below 5 and make 4, which is still below 5: the cell of 6 joins
        assert dof[0] == 2 and statistic[0] == pytest.approx(0 + 10**2 / 40 + (20 - 10) ** 2 / 10)
        assert np.isnan(boltzmann.chi_square(np.log(p), np.array([[1, 0, 0, 0, 0]]))[2][0]), "one cell is no test"

    def test_a_draw_on_a_masked_key_fails_at_once(self):
        logits = np.array([[0.0, 0.0, -np.inf]] * 50)
        counts = draw(logits, 100)
        assert not verify(logits, counts).rejected
        counts[7] = [50, 49, 1]
        found = verify(logits, counts)
        assert found.rejected and found.masked == 1 and boltzmann.chi_square(logits, counts)[2][7] == 0

    def test_false_alarms_are_rare_and_the_kl_follows_its_law(self):
        logits = boltzmann.causal_logits(40, heads=4)
        found = [verify(logits, draw(logits, 5000, "exact", (9, k))) for k in range(40)]
        assert sum(v.rejected for v in found) <= 1
        assert np.mean([v.kl / v.law for v in found]) == pytest.approx(1, abs=0.03)
        assert np.mean([v.kl_back / v.law for v in found]) == pytest.approx(1, abs=0.05)
        assert np.mean([v.mean_p for v in found]) == pytest.approx(0.5, abs=0.02)

    @pytest.mark.parametrize(("fault", "draws", "seen"), [
        ("wrap", 10_000, True), ("swapped", 10_000, True), ("temperature", 10_000, True), ("initial", 100, True), ("random initial", 30, True),
        ("initial", 1_000_000, False), ("temperature", 20, False),
    ])  # fmt: skip
    def test_broken_samplers_are_rejected_where_they_can_be_seen(self, fault, draws, seen):
        logits = boltzmann.causal_logits(300, heads=2)
        assert verify(logits, boltzmann.faulty(logits, draws, fault, 4)).rejected == seen

    def test_a_wrap_does_nothing_below_256(self):
        logits = boltzmann.causal_logits(256, heads=1)[-20:]
        assert np.array_equal(boltzmann.faulty(logits, 50, "wrap", 1), draw(logits, 50, "exact", 1))
        with pytest.raises(ValueError, match="^fault: expected one of.*got 'melted'"):
            boltzmann.faulty(logits, 50, "melted")

    def test_p_values_that_bunch_up_are_rejected(self):
        """A sampler that is too good (counts as expected) has p near 1 everywhere: only uniformity sees it."""
        logits = np.log(np.full((40, 5), 0.2))
        found = verify(logits, np.full((40, 5), 200))
        assert found.total == pytest.approx(1) and found.uniform < 1e-6 and found.rejected

    def test_parts_of_the_rows_join(self):
        logits = boltzmann.causal_logits(30, heads=2)
        counts = draw(logits, 500)
        parts = [boltzmann.row_tests(logits[s], counts[s]) for s in (slice(0, 9), slice(9, None))]
        assert boltzmann.summarise({k: np.concatenate([p[k] for p in parts]) for k in parts[0]}) == verify(logits, counts)
        with pytest.raises(ValueError, match="same number of draws"):
            verify(logits, counts + np.eye(*counts.shape, dtype=int) * 2 * (np.arange(len(counts)) == 0)[:, None])

    @pytest.mark.parametrize(("size", "rows"), [(5, 24), (10, 144), (20, 384), (256, 6048), (512, 12192)])
    def test_the_papers_numbers_of_rows(self, size, rows):
        assert 24 * (size - 4) == rows
        if size < 100:
            assert boltzmann.causal_logits(size).shape == (rows, size)

    def test_divergence_of_identical_logits_is_exactly_zero(self):
        logits = np.random.default_rng(0).normal(size=(5, 50)).astype(np.float32)
        assert (boltzmann.output_divergence(logits, logits) == 0).all()
        p, q = boltzmann.softmax(logits), boltzmann.softmax(logits[::-1])
        assert boltzmann.output_divergence(logits, logits[::-1]) == pytest.approx(stats.entropy(p, q, axis=1))

    def test_slopes(self):
        assert boltzmann.slope([1, 10, 100], [3.0, 0.3, 0.03]) == (pytest.approx(-1), pytest.approx(1))
        with pytest.raises(ValueError, match="^values: expected"):
            boltzmann.slope([1, 10], [1.0, 0.0])

    def test_what_was_measured_is_not_measured_again(self, tmp_path):
        calls, store = [], boltzmann.Store(tmp_path)
        measure = lambda: calls.append(1) or {"kl": [1.5, math.inf]}  # noqa: E731
        assert (
            store.get("a", {"K": 1}, measure) == boltzmann.Store(tmp_path).get("a", {"K": 1}, measure) == {"kl": [1.5, math.inf]}
        )
        store.get("a", {"K": 2}, measure)
        assert len(calls) == 2


class TestThrml:
    def test_shapes_are_compiled_once_for_many_lengths(self):
        boltzmann.thrml_program.cache_clear()
        for keys in (65, 80, 128):
            draw(np.zeros((6, keys)), 7, "thrml")
        assert boltzmann.thrml_program.cache_info().misses == 1
        assert boltzmann.thrml_program(6, 128)._cache_size() == 1, "K is traced, too"
        draw(np.zeros((6, 80)), 8, "thrml")
        assert boltzmann.thrml_program(6, 128)._cache_size() == 1
        assert boltzmann.bucket(9, 300) == (9, 512) and boltzmann.bucket(774, 5) == (832, 8)

    def test_compiled_memory_does_not_grow_with_the_draws(self):
        import jax

        shape = (64, 64)
        program = (
            boltzmann.thrml_program(*shape).lower(jax.ShapeDtypeStruct(shape, "float32"), jax.random.key(0), 10**6).compile()
        )
        held = program.memory_analysis()
        assert held.temp_size_in_bytes + held.output_size_in_bytes < 64 * 64 * 4 * 20

    def test_arrays_are_handed_over_without_a_copy(self):
        """The fourth corruption: the way between numpy, torch and jax is alive in both directions."""
        import jax

        there = jax.numpy.arange(4096.0)
        assert np.from_dlpack(there).__array_interface__["data"][0] == there.unsafe_buffer_pointer()
        assert torch.from_dlpack(there).data_ptr() == there.unsafe_buffer_pointer()
        here = torch.arange(4096.0)
        assert np.array_equal(jax.dlpack.from_dlpack(here), here.numpy())
        assert not hasattr(jax.dlpack, "to_dlpack"), "what the paper's bridge called"

    def test_the_initial_state_is_a_draw_only_without_warm_up(self):
        """The fifth corruption, in thrml's own sampler; 32 bits keep key 280."""
        assert boltzmann.thrml_draws(300, 280, warmup=0) == [0, 280, 280]
        assert draw(np.where(np.arange(300) == 280, 0.0, -100.0)[None], 9, "thrml")[0, 280] == 9

    def test_eight_bits_are_refused_by_the_installed_version_and_wrap_in_the_old_one(self):
        """The first corruption: key 280 came back as 24."""
        with pytest.raises(RuntimeError, match="n_categories=300 exceeds"):
            boltzmann.thrml_draws(300, 280, bits=8)
        try:
            old = boltzmann.thrml_draws(300, 280, bits=8, version="0.1.3")
        except frozen.ModelUnavailable as error:
            pytest.skip(str(error))
        assert old == [24, 24, 24]


class TestFrozen:
    def test_a_folder_that_is_none_is_said_so(self, tmp_path):
        with pytest.raises(frozen.ModelUnavailable, match="no local folder"):
            frozen.load(str(tmp_path / "nothing"))

    def test_a_package_that_can_not_be_had(self, tmp_path, monkeypatch):
        monkeypatch.setattr(frozen, "PACKAGE", "bornlib-there-is-no-such-package==0.0.1")
        monkeypatch.setenv("BORNLIB_CACHE", str(tmp_path))
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        with pytest.raises(frozen.ModelUnavailable, match="can't be downloaded"):
            frozen.fetch(progress=False)
        assert not [p for p in tmp_path.iterdir() if p.is_dir()], "nothing half done is left"

    def test_a_local_folder_is_loaded(self, small, tmp_path):
        model, tokenizer, ids = small
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        loaded, words = frozen.load(str(tmp_path))
        assert np.array_equal(boltzmann.last_logits(loaded, ids), boltzmann.last_logits(model, ids))
        assert words.decode(words("Grüße <b>").input_ids) == "Grüße <b>"

    def test_smollm2(self, real):
        """The dequantised weights speak: query and key rows are in transformers' order."""
        model, tokenizer = real
        assert (model.config.num_hidden_layers, model.config.num_attention_heads, model.config.num_key_value_heads) == (30, 9, 3)
        ids = frozen.prompt(tokenizer, "What is the capital of France?")
        said, _ = boltzmann.answer(model, ids, 7)
        assert "Paris" in tokenizer.decode(said)
        with sampled(model, 19, "exact", 500, 0.3):
            again, logits = boltzmann.answer(model, ids, 7)
        assert "Paris" in tokenizer.decode(again)
        before = boltzmann.last_logits(model, ids)
        with sampled(model, 19, "exact", 500, 0.0):
            assert np.array_equal(boltzmann.last_logits(model, ids), before)


class TestAnswers:
    def test_both_answers_are_escaped(self, small):
        model, tokenizer, _ = small
        result = boltzmann_figures.compare(model, tokenizer, "<script>alert(1)</script>", 1, "exact", 5, 1.0, tokens=6)
        result["vanilla"], result["sampled"][0] = ["<img src=x>"], "<b>"
        page = boltzmann_figures.answers_html(result)
        assert (
            "<script" not in page and "<img" not in page and "<b>" not in page.replace("<p><b>Prompt", "") and "&lt;b&gt;" in page
        )
        assert len(result["kl"]) == len(result["same"]) == len(result["sampled"]) == 6 and min(result["kl"]) >= 0
        with pytest.raises(ValueError, match="^text: expected a prompt"):
            boltzmann_figures.compare(model, tokenizer, " ", 1)

    def test_the_cell_answers_when_the_button_is_pressed(self, small):
        model, tokenizer, _ = small
        chat = boltzmann_figures.Chat(model, tokenizer, "Hello", 1, tokens=4)
        assert chat.result is None and chat.page.value == ""
        chat.backend.value, chat.draws.value, chat.blend.value = "gumbel", 7, 1.0
        chat.button.click()
        assert chat.result["settings"] == {"layer": 1, "backend": "gumbel", "draws": 7, "blend": 1.0, "seed": 0}
        assert "Hello" in chat.page.value and not chat.button.disabled
        chat.text.value = ""
        chat.button.click()
        assert "expected a prompt" in chat.message.value and not chat.button.disabled

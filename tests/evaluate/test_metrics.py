import dataclasses
import json
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from curlicue.errors import DataError
from curlicue.evaluate.metrics import (
    ClusterScores,
    class_accuracy,
    class_confusion,
    cluster_accuracy,
    cluster_scores,
    confusion,
    forgetting,
    hungarian_accuracy,
    knn_error,
)

SEEDS = range(8)

# Ten samples of three classes in four components; component 2 is tied between classes 1 and 2.
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
COMPONENTS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
TABLE = torch.tensor([[3, 1, 0, 0], [0, 2, 1, 0], [0, 0, 1, 2]])


def random_samples(seed: int, N: int = 200, n_classes: int = 5, K: int = 7) -> tuple[Tensor, Tensor]:
    """Components that follow the class for about half of the samples."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (N,), generator=rng)
    noise = torch.randint(K, (N,), generator=rng)
    return labels, torch.where(torch.rand(N, generator=rng) < 0.5, labels, noise)


def random_table(seed: int, n_classes: int = 5, K: int = 7) -> Tensor:
    return confusion(*random_samples(seed, n_classes=n_classes, K=K), n_classes, K)


def scores_of(table: Tensor) -> ClusterScores:
    """The scores of the samples that `table` counts."""
    labels, components = table.nonzero().repeat_interleave(table[table > 0], dim=0).T
    return cluster_scores(labels, components, *table.shape)


def nmi(table: Tensor) -> float:
    return scores_of(table).nmi


def ari(table: Tensor) -> float:
    return scores_of(table).ari


TABLE_SCORES = [cluster_accuracy, hungarian_accuracy, nmi, ari]


# --- the table ---


def test_confusion_counts_each_class_in_each_component():
    table = confusion(LABELS, COMPONENTS, n_classes=3, K=4)
    assert table.dtype == torch.int64
    assert torch.equal(table, TABLE)


def test_confusion_keeps_classes_and_components_that_hold_nothing():
    table = confusion(torch.tensor([1]), torch.tensor([2]), n_classes=3, K=4)
    assert table.tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


# --- accuracies ---


def test_cluster_accuracy_counts_the_most_frequent_class_of_each_component():
    assert cluster_accuracy(TABLE) == (3 + 2 + 1 + 2) / 10


def test_class_confusion_sums_the_components_that_vote_for_a_class_and_ties_go_to_the_lowest():
    # votes of the components: 0, 1, 1 (tied with 2), 2
    assert class_confusion(TABLE).tolist() == [[3, 1, 0], [0, 2 + 1, 0], [0, 1, 2]]


def test_class_accuracy_is_the_share_of_a_class_in_components_voting_for_it():
    assert class_accuracy(TABLE).tolist() == [3 / 4, 3 / 3, 2 / 3]


def test_a_class_without_samples_has_no_accuracy():
    accuracy = class_accuracy(torch.tensor([[2, 0], [0, 0], [1, 1]]))
    assert accuracy[1].isnan()
    assert accuracy[[0, 2]].tolist() == [1.0, 0.5]


def test_hungarian_accuracy_gives_each_class_one_component():
    # 0 ↔ 0 (3), 1 ↔ 1 (2), 2 ↔ 3 (2); component 2 stays unmatched
    assert hungarian_accuracy(TABLE) == 7 / 10
    # the greedy choice 0 ↔ 0 (5) would leave 1 ↔ 1 (0); the best is 4 + 4
    assert hungarian_accuracy(torch.tensor([[5, 4], [4, 0]])) == 8 / 13


@pytest.mark.parametrize(("n_classes", "K"), [(4, 4), (3, 5), (5, 3)])
def test_hungarian_accuracy_is_the_best_of_all_matchings(n_classes: int, K: int):
    table = random_table(seed=n_classes, n_classes=n_classes, K=max(n_classes, K))[:, :K]
    tall = table if n_classes >= K else table.T
    best = max(
        sum(int(tall[row, i]) for i, row in enumerate(rows)) for rows in permutations(range(len(tall)), tall.shape[1])
    )
    assert hungarian_accuracy(table) == best / int(table.sum())


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster_accuracy_is_the_mean_class_accuracy_weighted_by_class_size(seed: int):
    table = random_table(seed)
    weighted = (class_accuracy(table) * table.sum(1)).sum() / table.sum()
    assert cluster_accuracy(table) == pytest.approx(float(weighted), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_class_confusion_keeps_every_sample_in_the_row_of_its_class(seed: int):
    table = random_table(seed)
    assert torch.equal(class_confusion(table).sum(1), table.sum(1))


@pytest.mark.parametrize("seed", SEEDS)
def test_splitting_a_component_never_lowers_cluster_accuracy(seed: int):
    labels, components = random_samples(seed)
    before = cluster_accuracy(confusion(labels, components, 5, 8))
    moved = (components == 0) & (torch.rand(200, generator=torch.Generator().manual_seed(seed)) < 0.5)
    assert moved.any()
    assert cluster_accuracy(confusion(labels, components.masked_fill(moved, 7), 5, 8)) >= before


def test_a_component_of_its_own_for_every_sample_is_pure_but_matches_few():
    labels, _ = random_samples(seed=0)
    table = confusion(labels, torch.arange(200), n_classes=5, K=200)
    assert cluster_accuracy(table) == 1.0
    assert hungarian_accuracy(table) == 5 / 200


@pytest.mark.parametrize("seed", SEEDS)
def test_one_to_one_matching_never_explains_more_than_voting(seed: int):
    table = random_table(seed)
    assert hungarian_accuracy(table) < cluster_accuracy(table)  # strictly: 7 components share 5 classes


# --- information and pairs ---


def test_nmi_is_mutual_information_over_the_mean_entropy():
    # In bits: H(class) = 1, H(component) = 1.5 = H(both), so I = 1 and NMI = 1 / 1.25.
    assert nmi(torch.tensor([[2, 0, 0], [0, 1, 1]])) == pytest.approx(0.8, abs=1e-12)


def test_ari_is_the_excess_of_agreeing_pairs_over_chance():
    # S = 3 + 1 + 1 = 5, A = 6 + 3 + 3 = 12, B = 3 + 3 + 1 + 1 = 8, T = 45, E = 96 / 45
    # (5 − 96/45) / (10 − 96/45) = 129 / 354
    assert ari(TABLE) == 129 / 354


def test_ari_of_discordant_partitions_is_negative():
    # S = 0, A = B = 2, T = 6, E = 2/3: (0 − 2/3) / (2 − 2/3) = −1/2
    assert ari(torch.tensor([[1, 1], [1, 1]])) == -0.5


@pytest.mark.parametrize("seed", SEEDS)
def test_nmi_and_ari_are_what_their_definitions_say(seed: int):
    n = random_table(seed)

    def entropy(counts: Tensor) -> float:
        return float(torch.special.entr(counts.double() / counts.sum()).sum())

    def pairs(counts: Tensor) -> Fraction:
        return Fraction(int((counts * (counts - 1)).sum()), 2)

    H, H_both = entropy(n.sum(1)) + entropy(n.sum(0)), entropy(n)
    assert nmi(n) == pytest.approx(2 * (H - H_both) / H, abs=1e-12)
    S, A, B, T = pairs(n), pairs(n.sum(1)), pairs(n.sum(0)), pairs(n.sum())
    assert ari(n) == pytest.approx(float((S - A * B / T) / ((A + B) / 2 - A * B / T)), abs=1e-12)


@pytest.mark.parametrize(
    ("table", "expected_nmi", "expected_ari"),
    [
        pytest.param([[1, 0], [0, 0]], 1, 1, id="one sample"),
        pytest.param([[0, 7], [0, 0]], 1, 1, id="one class in one component"),
        pytest.param([[2, 3, 4]], 0, 0, id="one class in many components"),
        pytest.param([[2], [3], [4]], 0, 0, id="many classes in one component"),
        pytest.param([[1, 1, 1]], 0, 0, id="one class, components of one sample each"),
        pytest.param([[1, 0], [0, 1]], 1, 1, id="all apart on both sides"),
        pytest.param([[2, 4], [3, 6]], 0, -3 / 46, id="independent"),
    ],
)
def test_nmi_and_ari_of_degenerate_tables(table: list[list[int]], expected_nmi: float, expected_ari: float):
    n = torch.tensor(table)
    assert nmi(n) == pytest.approx(expected_nmi, abs=1e-12)
    assert ari(n) == pytest.approx(expected_ari, abs=1e-12)


@pytest.mark.parametrize("score", [nmi, ari])
@pytest.mark.parametrize("seed", SEEDS)
def test_nmi_and_ari_treat_classes_and_components_alike(score: Callable[[Tensor], float], seed: int):
    table = random_table(seed)
    assert score(table) == pytest.approx(score(table.T), abs=1e-12)


# --- laws of every clustering score ---


@pytest.mark.parametrize("score", TABLE_SCORES)
@pytest.mark.parametrize("seed", SEEDS)
def test_renaming_components_changes_no_score(score: Callable[[Tensor], float], seed: int):
    table = random_table(seed)
    renamed = table[:, torch.randperm(7, generator=torch.Generator().manual_seed(seed))]
    assert score(renamed) == pytest.approx(score(table), abs=1e-12)


@pytest.mark.parametrize("score", TABLE_SCORES)
def test_components_and_classes_without_samples_change_no_score(score: Callable[[Tensor], float]):
    padded = torch.nn.functional.pad(TABLE, (2, 3, 1, 2))
    assert score(padded) == pytest.approx(score(TABLE), abs=1e-12)


@pytest.mark.parametrize("score", TABLE_SCORES)
def test_a_perfect_clustering_scores_one_and_any_error_less(score: Callable[[Tensor], float]):
    perfect = torch.tensor([[0, 3, 0], [0, 0, 8], [5, 0, 0]])
    one_wrong = torch.tensor([[0, 3, 0], [0, 1, 7], [5, 0, 0]])
    assert score(perfect) == pytest.approx(1.0, abs=1e-12)
    assert score(one_wrong) < 0.99


# --- all scores together ---


def test_cluster_scores_gathers_what_the_single_scores_say():
    scores = cluster_scores(LABELS, COMPONENTS, n_classes=4, K=6)
    assert dataclasses.asdict(scores) == {
        "cluster_accuracy": 0.8,
        "hungarian_accuracy": 0.7,
        "nmi": pytest.approx(0.618572786653966, abs=1e-12),
        "ari": 129 / 354,
        "class_accuracy": (3 / 4, 1.0, 2 / 3, None),  # no sample has class 3
        "n_used": 4,
        "K": 6,
    }


def test_cluster_scores_are_plain_json_even_for_classes_without_samples():
    scores = cluster_scores(LABELS, COMPONENTS, n_classes=4, K=6)
    text = json.dumps(dataclasses.asdict(scores), allow_nan=False)
    assert json.loads(text)["class_accuracy"] == [3 / 4, 1.0, 2 / 3, None]


# --- k nearest neighbours ---


def blobs(seed: int, N: int, Z: int = 8, n_classes: int = 6) -> tuple[Tensor, Tensor]:
    """Overlapping clouds, one per class, whose centres do not depend on the seed."""
    centres = 0.6 * torch.randn(n_classes, Z, generator=torch.Generator().manual_seed(99))
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (N,), generator=rng)
    return centres[labels] + torch.randn(N, Z, generator=rng), labels


def sklearn_error(train_z: Tensor, train_labels: Tensor, test_z: Tensor, test_labels: Tensor, k: int) -> float:
    classifier = KNeighborsClassifier(k, algorithm="brute").fit(train_z.numpy(), train_labels.numpy())
    return float((classifier.predict(test_z.numpy()) != test_labels.numpy()).mean())


def test_knn_error_on_a_line_by_hand():
    train_z, train_labels = torch.tensor([[0.0], [1.0], [2.0], [10.0]]), torch.tensor([0, 1, 1, 2])
    test_z, test_labels = torch.tensor([[-1.0], [9.0], [1.6]]), torch.tensor([0, 2, 1])
    # −1: neighbours 0, 1, 1   9: neighbours 2, 1, 1   1.6: neighbours 1, 1, 0
    errors = knn_error(train_z, train_labels, test_z, test_labels, k=(3, 1))
    assert errors == {3: 2 / 3, 1: 0.0}


@pytest.mark.parametrize("seed", range(4))
def test_knn_error_agrees_with_scikit_learn_for_every_k_at_once(seed: int):
    train, test = blobs(seed, N=400), blobs(seed + 100, N=150)
    errors = knn_error(*train, *test, k=(1, 2, 4, 10, 400))  # even k: many tied votes
    assert errors == {k: pytest.approx(sklearn_error(*train, *test, k), abs=1e-12) for k in errors}
    assert list(errors) == [1, 2, 4, 10, 400]
    assert 0.05 < errors[10] < errors[400]  # neither trivially right nor trivially wrong


def test_ten_neighbours_vote_unless_told_otherwise():
    train, test = blobs(0, N=100), blobs(1, N=50)
    assert knn_error(*train, *test) == knn_error(*train, *test, k=[10])


def test_tied_votes_go_to_the_lowest_label_and_not_to_the_nearest():
    train_z, train_labels = torch.tensor([[1.0], [2.0]]), torch.tensor([7, 3])
    test_z = torch.zeros(1, 1)
    assert knn_error(train_z, train_labels, test_z, torch.tensor([3]), k=(2,)) == {2: 0.0}
    assert knn_error(train_z, train_labels, test_z, torch.tensor([7]), k=(2,)) == {2: 1.0}


def test_labels_for_neighbours_may_be_any_integers():
    (train_z, train_labels), (test_z, test_labels) = blobs(0, N=100), blobs(1, N=50)
    names = torch.tensor([-4, 0, 17, 18, 5_000, 10**15])  # ascending, so that ties fall as before
    renamed = knn_error(train_z, names[train_labels], test_z, names[test_labels], k=(1, 4))
    assert renamed == knn_error(train_z, train_labels, test_z, test_labels, k=(1, 4))


def test_a_test_label_never_seen_in_training_is_always_an_error():
    train_z, train_labels = blobs(0, N=20)
    assert knn_error(train_z, train_labels, train_z, torch.full((20,), 9), k=(1,)) == {1: 1.0}
    assert knn_error(train_z, train_labels, train_z, train_labels, k=(1,)) == {1: 0.0}


@pytest.mark.parametrize(
    ("centres", "scale", "dtype"),
    [
        pytest.param([3e3], 1, torch.float32, id="one cloud far from the origin"),
        pytest.param([-3e3, 3e3], 1, torch.float32, id="two clouds far apart, which centring cannot help"),
        pytest.param([3e8], 1, torch.float64, id="one cloud so far that float64 cannot help"),
        pytest.param([0], 1e25, torch.float32, id="squares beyond float32"),
        pytest.param([0], 1e-25, torch.float32, id="squares below float32"),
    ],
)
def test_neighbours_are_found_wherever_and_however_large_the_clouds_are(
    centres: list[float], scale: float, dtype: torch.dtype
):
    rng = torch.Generator().manual_seed(0)
    clouds = torch.randn(len(centres), 100, 4, generator=rng) + torch.tensor(centres).double()[:, None, None]
    train_z = (scale * clouds).flatten(0, 1).to(dtype)  # [C · 100, 4]
    test_z = train_z + 0.01 * scale * torch.randn(train_z.shape, generator=rng)  # each right beside its own
    own = torch.arange(len(train_z))  # every point is a class by itself
    assert knn_error(train_z, own, test_z, own, k=(1,)) == {1: 0.0}


def test_knn_error_takes_embeddings_that_carry_gradients_and_leaves_them_alone():
    (train_z, train_labels), test = blobs(0, N=30), blobs(1, N=20)
    kept = train_z.clone()
    with_gradient = knn_error(train_z.requires_grad_(), train_labels, *test, k=(3,))
    assert with_gradient == knn_error(kept, train_labels, *test, k=(3,))
    assert torch.equal(train_z, kept)


# --- forgetting ---


def test_forgetting_is_the_best_accuracy_minus_the_last():
    over_time = torch.tensor([[0.50, 0.00], [1.00, 0.25], [0.25, 0.75]])
    assert forgetting(over_time).tolist() == [1.00 - 0.25, 0.75 - 0.75]


def test_forgetting_skips_moments_without_a_value_but_not_a_missing_end():
    nan = math.nan
    over_time = torch.tensor([[nan, 0.5, nan], [0.75, 1.0, nan], [nan, 0.5, nan], [0.5, nan, nan]])
    lost = forgetting(over_time)
    assert lost[0] == 0.25
    assert lost[1:].isnan().all()  # how class 1 ended is not known; class 2 was never seen


def test_forgetting_is_zero_exactly_when_every_class_ends_at_its_best():
    over_time = torch.rand(6, 4, generator=torch.Generator().manual_seed(0))
    assert (forgetting(over_time) > 0).any()
    assert forgetting(over_time.sort(0).values).tolist() == [0.0] * 4


# --- what is refused ---

Z2, Y2 = torch.zeros(2, 3), torch.tensor([0, 1])  # two embeddings and their labels


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: confusion(torch.tensor([0, 3]), Y2, 3, 4),
            "labels must be at least 0 and below 3, got 0 … 3. Number them from 0, or raise that bound.",
        ),
        (
            lambda: confusion(Y2, torch.tensor([-1, 1]), 3, 4),
            "components must be at least 0 and below 4, got -1 … 1. Number them from 0, or raise that bound.",
        ),
        (
            lambda: confusion(Y2, torch.tensor([0, 1, 1]), 3, 4),
            "labels has 2 samples but components has 3. Pass one of each per sample.",
        ),
        (
            lambda: cluster_scores(torch.tensor([]).long(), torch.tensor([]).long(), 3, 4),
            "labels must be integers [N] and not empty, got torch.int64 [0]. Pass one index per sample.",
        ),
        (
            lambda: confusion(Y2, torch.tensor([0.0, 1.0]), 3, 4),
            "components must be integers [N] and not empty, got torch.float32 [2]. Pass one index per sample.",
        ),
        (
            lambda: confusion(Y2[None], Y2, 3, 4),
            "labels must be integers [N] and not empty, got torch.int64 [1, 2]. Pass one index per sample.",
        ),
        (
            lambda: hungarian_accuracy(torch.tensor([1, 2])),
            "confusion must be integers [n_classes, K] and not empty, got torch.int64 [2]. "
            "Make it with confusion(labels, components, n_classes, K).",
        ),
        (
            lambda: class_accuracy(torch.tensor([[1, -2]])),
            "confusion must hold counts, which are at least 0, got -2. "
            "Make it with confusion(labels, components, n_classes, K).",
        ),
        (
            lambda: cluster_accuracy(torch.zeros(2, 2).long()),
            "confusion counts no samples, so no share is defined. Pass at least one sample.",
        ),
        (
            lambda: hungarian_accuracy(torch.zeros(2, 2).long()),
            "confusion counts no samples, so no share is defined. Pass at least one sample.",
        ),
        (
            lambda: knn_error(torch.tensor([[0.0, math.nan], [1.0, 1.0]]), Y2, Z2, Y2, k=(1,)),
            "train_z has nan or infinite values in 1 of 2 rows. Check the model that embedded them.",
        ),
        (
            lambda: knn_error(Z2, Y2, torch.full((2, 3), math.inf), Y2, k=(1,)),
            "test_z has nan or infinite values in 2 of 2 rows. Check the model that embedded them.",
        ),
        (
            lambda: knn_error(Z2, Y2, torch.zeros(0, 3), Y2, k=(1,)),
            "test_z must be floats [N, Z] and not empty, got torch.float32 [0, 3]. Pass one embedding per sample.",
        ),
        (
            lambda: knn_error(Z2, Y2, torch.zeros(2, 5), Y2, k=(1,)),
            "train_z has 3 dimensions but test_z has 5. Embed both with the same model.",
        ),
        (
            lambda: knn_error(Z2, Y2[:1], Z2, Y2, k=(1,)),
            "train_z has 2 samples but train_labels has 1. Pass one of each per sample.",
        ),
        (
            lambda: knn_error(Z2, Y2, Z2[:1], Y2, k=(1,)),
            "test_z has 1 samples but test_labels has 2. Pass one of each per sample.",
        ),
        (
            lambda: knn_error(Z2, Y2, Z2, Y2, k=(1, 3)),
            "k must list numbers from 1 to 2, the training points, got [1, 3]. "
            "Ask for fewer neighbours, or pass more training points.",
        ),
        (
            lambda: knn_error(Z2, Y2, Z2, Y2, k=(0,)),
            "k must list numbers from 1 to 2, the training points, got [0]. "
            "Ask for fewer neighbours, or pass more training points.",
        ),
        (
            lambda: knn_error(Z2, Y2, Z2, Y2, k=()),
            "k must list numbers from 1 to 2, the training points, got []. "
            "Ask for fewer neighbours, or pass more training points.",
        ),
        (
            lambda: forgetting(torch.zeros(0, 4)),
            "class_accuracy_over_time must be floats [T, n_classes] and not empty, got torch.float32 [0, 4]. "
            "Stack one class_accuracy(…) per evaluation.",
        ),
    ],
)
def test_refused_data_are_named_shown_and_come_with_a_remedy(call: Callable[[], object], message: str):
    with pytest.raises(DataError) as refusal:
        call()
    assert str(refusal.value) == message

"""Masks: every derivation against fixed vectors and another spelling, and masked bytes that look random."""

from __future__ import annotations

import hmac
import sys
import zlib
from hashlib import sha256

import numpy as np
import pytest
from scipy import stats

from fedshed._utils.errors import ConfigError, ProtocolError

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedshed.privacy import fixed_point as fp
from fedshed.privacy import masks
from fedshed.privacy.linear_tags import PRIMES, TAGS

SHAPE = fp.Shape(wide=3, slim=4, slots=1, fraction=20)
STUDY, RUN = bytes(range(32)), bytes(range(8))
A, B = bytes([1]) * 32, bytes([2]) * 32
KEYS = {
    "a": (masks.identity_public(A), masks.exchange_public(A)),
    "b": (masks.identity_public(B), masks.exchange_public(B)),
}
ROSTER = masks.roster_digest(STUDY, RUN, KEYS)
CONTEXT = masks.context(ROSTER, 1, 2, ["b", "a"], bytes(32), bytes(32))
PAIR = masks.pair_key(A, KEYS["b"][1], ROSTER, ("a", "b"))


def lengths(*parts):
    return b"".join(len(part).to_bytes(8, "big") + part for part in (b"fedshed masked sums 1", *parts))


def expand(key, info):
    """HKDF-Expand to 32 bytes (RFC 5869, section 2.3): T(1) = HMAC(key, info | 1)."""
    return hmac.digest(key, info + b"\x01", "sha256")


def hkdf(secret, info):
    """HKDF to 32 bytes (RFC 5869) with the salt of zeros that stands for none."""
    return expand(hmac.digest(bytes(32), secret, "sha256"), info)


def counted(key, count):
    """AES-256 of the numbers 0, 1, 2, ...: counter mode by the block cipher alone."""
    blocks = b"".join(i.to_bytes(16, "big") for i in range(-(-count // 16)))
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)[:count]


# --- the standards' own vectors ------------------------------------------------------------------


def test_key_agreement_is_x25519():
    """RFC 7748, section 6.1: both public keys, and the shared secret that a pair key is made from."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    secret = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    publics = [masks.exchange_public(key).hex() for key in (alice, bob)]
    assert publics == [
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
    ]
    pair = masks.pair_key(alice, bytes.fromhex(publics[1]), ROSTER, ("b", "a"))
    assert pair == hkdf(secret, lengths(b"pair", ROSTER, b"a", b"b"))
    assert pair == masks.pair_key(bob, bytes.fromhex(publics[0]), ROSTER, ("a", "b"))


def test_signatures_are_ed25519():
    """RFC 8032, section 7.1, test 1: the empty message."""
    private = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = masks.identity_public(private)
    assert public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    signature = masks.signed(private, b"")
    assert signature.hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert masks.verified(public, signature, b"")
    assert not masks.verified(public, signature, b"x")
    assert not masks.verified(KEYS["a"][0], signature, b"")
    assert not masks.verified(b"short", signature, b"")


def test_the_other_spelling_of_hkdf_is_that_of_its_standard():
    """RFC 5869, test case 3, the first 32 bytes."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert hkdf(b"\x0b" * 22, b"").hex() == expected


def test_the_other_spelling_of_counter_mode_is_aes():
    """NIST SP 800-38A, F.1.5, the first block."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    block = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    found = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)
    assert found.hex() == "f3eed1bdb5d2a03c064b5a7e3db181f8"


# --- our own derivations -------------------------------------------------------------------------


def test_streams_are_counter_mode_from_zero():
    """The first block under the key of zeros is the vector that FIPS 197's tests give for it."""
    assert masks.stream(bytes(32), 16).hex() == "dc95c078a2408989ad48a21492842087"
    for count in (0, 1, 16, 1000):
        assert masks.stream(A, count) == counted(A, count)


VECTORS = {
    "roster": ROSTER,
    "context": CONTEXT,
    "pair": PAIR,
    "group": masks.group_key({"b": B, "a": A}, ROSTER),
    "mask": masks.mask_key(PAIR, CONTEXT),
    "own": masks.own_key(A, CONTEXT),
    "tags": masks.derived(B, "tags", CONTEXT),
    "box": masks.boxed(PAIR, ROSTER, "a", "b", A),
}
FIXED = {
    "roster": "1e97327af3c70ec4a8469696ece86a750bb85223811f51e36d809f7c1cf8d197",
    "context": "caedd8983b9139baa998f4da518653c7fce825e0b3eb8b40eff4198b7778a19e",
    "pair": "1ca10f44c9b26fbddb500f3c016f163e5abc6c5956fd4e01b537dcfa7d84e349",
    "group": "5bab76752d6769c6dccf3f2707ebfbc4560e735f47692f928301d5a78f1eca42",
    "mask": "c5d9c3b04223949c3910f1df4a91d804a44fb8ba5b7200cac38c5bd24131d1d8",
    "own": "d95cd796e7235247e251f4e28da343ac10b0cfe261306589af8a76485bb2e3d7",
    "tags": "dfc376811381704c55d02e223fc1d7429726db74288176d5ba3718a4b5e7e025",
    "box": "733f57e684f280f2bc6a558a5c5661904846469f6981052f1e753eeaa788c7fe32e7ee611c62bf32e8468d820ff00c66",
}


@pytest.mark.parametrize("name", VECTORS)
def test_derivations_do_not_change(name):
    """Sites of two versions must derive the same keys; a change here needs another VERSION."""
    assert VECTORS[name].hex() == FIXED[name]


def test_derivations_agree_with_another_spelling():
    a_keys, b_keys = KEYS["a"], KEYS["b"]
    roster = sha256(lengths(b"roster", STUDY, RUN, b"a", *a_keys, b"b", *b_keys)).digest()
    among = sha256(lengths(b"set", b"a", b"b")).digest()
    one, two = (1).to_bytes(8, "big"), (2).to_bytes(8, "big")
    context = sha256(lengths(b"context", roster, one, two, among, bytes(32), bytes(32))).digest()
    assert (roster, context) == (ROSTER, CONTEXT)
    assert VECTORS["group"] == hkdf(A + B, lengths(b"group", roster))
    assert VECTORS["mask"] == expand(PAIR, lengths(b"mask", context))
    assert VECTORS["own"] == expand(A, lengths(b"own", context))
    assert VECTORS["tags"] == expand(B, lengths(b"tags", context))
    found = masks.tag_coefficients(B, CONTEXT, SHAPE)
    drawn = counted(VECTORS["tags"], 8 * TAGS * (3 + 4 + 1))
    words = [int.from_bytes(drawn[i : i + 8], "little") % 2**61 for i in range(0, len(drawn), 8)]
    limbs = found.reshape(-1, 4).astype(int) @ np.array([1, 2**16, 2**32, 2**48])
    assert limbs.tolist() == words


def test_masks_are_streams_cut_into_words():
    keys = [bytes([i]) * 32 for i in range(40)]
    words, tags = masks.masks(keys, SHAPE)
    streams = [np.frombuffer(counted(key, 8 * (SHAPE.words + TAGS)), "<u8").tolist() for key in keys]
    wide = [sum(s[j] + (s[3 + j] << 64) for s in streams) % 2**128 for j in range(3)]
    rest = [sum(s[j] for s in streams) % 2**64 for j in range(6, SHAPE.words)]
    assert [int(words[j]) + (int(words[3 + j]) << 64) for j in range(3)] == wide
    assert words[6:].tolist() == rest
    last = [[s[SHAPE.words + j] % 2**61 for s in streams] for j in range(TAGS)]
    assert tags == tuple(sum(column) % p for column, p in zip(last, PRIMES, strict=True))


def test_masks_do_not_depend_on_how_many_are_held_at_a_time(monkeypatch):
    keys = [bytes([i]) * 32 for i in range(9)]
    whole = masks.masks(keys, SHAPE)
    monkeypatch.setattr(masks, "AT_ONCE", 30)
    parts = masks.masks(keys, SHAPE)
    assert whole[0].tolist() == parts[0].tolist()
    assert whole[1] == parts[1]


OTHER = {
    "study": lambda: masks.roster_digest(bytes(32), RUN, KEYS),
    "run": lambda: masks.roster_digest(STUDY, bytes(8), KEYS),
    "roster": lambda: masks.roster_digest(STUDY, RUN, KEYS | {"c": KEYS["a"]}),
    "keys": lambda: masks.roster_digest(STUDY, RUN, KEYS | {"b": KEYS["a"]}),
}


@pytest.mark.parametrize("what", OTHER)
def test_another_study_run_or_roster_shares_no_key(what):
    other = OTHER[what]()
    pair = masks.pair_key(A, KEYS["b"][1], other, ("a", "b"))
    assert other != ROSTER
    assert pair != PAIR
    assert masks.group_key({"a": A, "b": B}, other) != VECTORS["group"]


@pytest.mark.parametrize("index", range(6))
def test_everything_about_an_attempt_changes_its_masks(index):
    parts = [ROSTER, 1, 2, ["a", "b"], bytes(32), bytes(32)]
    others = [bytes(32), 2, 1, ["a", "b", "c"], A, A]
    changed = masks.context(*(others[j] if j == index else parts[j] for j in range(6)))
    assert masks.context(*parts) == CONTEXT
    assert changed != CONTEXT
    assert masks.mask_key(PAIR, changed) != VECTORS["mask"]


def test_lengths_keep_parts_apart():
    assert masks.digest("x", b"ab", b"c") != masks.digest("x", b"a", b"bc")
    assert masks.digest("x", b"ab") != masks.digest("xa", b"b")
    assert masks.context(ROSTER, 1, 1, ["ab", "c"], A, A) != masks.context(ROSTER, 1, 1, ["a", "bc"], A, A)


def test_a_box_opens_for_its_receiver_only():
    box = masks.boxed(PAIR, ROSTER, "a", "b", A)
    assert len(box) == masks.BOX
    assert masks.unboxed(PAIR, ROSTER, "a", "b", box) == A
    wrong = [(PAIR, ROSTER, "b", "a"), (B, ROSTER, "a", "b"), (PAIR, bytes(32), "a", "b")]
    for pair, roster, sender, receiver in wrong:
        with pytest.raises(ProtocolError, match="share"):
            masks.unboxed(pair, roster, sender, receiver, box)
    for at in range(len(box)):
        changed = box[:at] + bytes([box[at] ^ 1]) + box[at + 1 :]
        with pytest.raises(ProtocolError, match="share"):
            masks.unboxed(PAIR, ROSTER, "a", "b", changed)


def test_a_point_of_small_order_gives_no_key():
    with pytest.raises(ProtocolError, match="X25519"):
        masks.pair_key(A, bytes(32), ROSTER, ("a", "b"))


# --- masked bytes look random --------------------------------------------------------------------


def test_masked_bytes_are_uniform_whatever_they_hide():
    """Chi-square over bytes in 60 runs whose p-values are uniform; nothing to compress; deterministic."""
    shape = fp.Shape(wide=100, slim=800, slots=4, fraction=20)
    zeros = np.zeros(shape.words, dtype=np.uint64)
    found, sizes = [], []
    for run in range(60):
        pair = masks.pair_key(A, KEYS["b"][1], masks.roster_digest(STUDY, bytes([run] * 8), KEYS), ("a", "b"))
        mask, _ = masks.masks([masks.mask_key(pair, CONTEXT), masks.own_key(A, bytes([run]))], shape)
        data = fp.add(zeros, mask, shape).tobytes()
        found.append(stats.chisquare(np.bincount(np.frombuffer(data, np.uint8), minlength=256)).pvalue)
        sizes.append(len(zlib.compress(data, 9)) / len(data))
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert min(sizes) >= 1.0


def test_two_runs_of_a_study_share_no_mask():
    shape = fp.Shape(wide=50, slim=50, slots=2, fraction=20)
    seen = set()
    for run in range(20):
        roster = masks.roster_digest(STUDY, bytes([run] * 8), KEYS)
        pair = masks.pair_key(A, KEYS["b"][1], roster, ("a", "b"))
        context = masks.context(roster, 1, 1, ["a", "b"], bytes(32), bytes(32))
        seen |= set(masks.masks([masks.mask_key(pair, context)], shape)[0].tolist())
    assert len(seen) == 20 * shape.words


def test_where_the_library_is_missing_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    masks._library.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'fedshed\[protected\]'"):
        masks.identity_public(A)
    monkeypatch.undo()
    assert masks.identity_public(A) == KEYS["a"][0]

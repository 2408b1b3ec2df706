"""Verdicts: what counts as the picture, and against which guess."""

import pytest

from mjp.privacy.scoring import summarize

GUESS = {"mean": 11.0, "colour": 18.2}


def judged(psnr, unmasked, masked, guess_unmasked=15.0):
    values = {"applies": True, "reason": "", "psnr": psnr, "client_psnr": psnr, "ssim": 0.3}
    values |= {"psnr_unmasked": unmasked, "guess_unmasked": guess_unmasked}
    values |= {"masked_patches": masked, "patches": 144}
    return summarize([values], GUESS, True, 1)


def test_a_tenth_of_the_picture_is_not_the_picture():
    found = judged(psnr=18.0, unmasked=22.0, masked=130)
    assert found["level"] == "failed"
    assert "outside the mask" not in found["verdict"]


def test_what_most_patches_show_counts_and_its_share_is_told():
    found = judged(psnr=18.0, unmasked=29.0, masked=13)
    assert found["level"] == "recognisable"
    assert "outside the mask (91 % of it): 29 dB" in found["verdict"]


@pytest.mark.parametrize(("guess", "level"), [(15.0, "recognisable"), (22.0, "failed")])
def test_unmasked_patches_are_compared_with_a_guess_at_them(guess, level):
    assert judged(psnr=12.0, unmasked=22.5, masked=40, guess_unmasked=guess)["level"] == level

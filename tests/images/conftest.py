"""The images that tests of the data use, here too."""

from tests.data.conftest import make_images, odd_images, photos

__all__ = ["make_images", "odd_images", "photos"]

"""`python -m curlicue` is `curlicue`."""

from curlicue.cli import main

main()

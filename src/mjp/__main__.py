"""`python -m mjp`, and so `torchrun -m mjp`."""

from mjp.cli import main

if __name__ == "__main__":
    main()

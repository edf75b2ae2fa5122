"""`python -m collsynth.bench`."""

from .main import main

if __name__ == "__main__":
    main()

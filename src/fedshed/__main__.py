"""`python -m fedshed` is the command `fedshed`."""

from fedshed.cli import main

if __name__ == "__main__":
    main()

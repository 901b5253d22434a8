# SPDX-License-Identifier: Apache-2.0
"""Entry point of the `tritonctl` command and of `python -m tritonctl`."""


def main() -> None:
    """Run the command line; the exit code tells the kind of failure (see `tritonctl.errors`)."""
    from tritonctl.cli import app

    app()


if __name__ == "__main__":
    main()

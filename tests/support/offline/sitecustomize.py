"""Python imports this at its start where the folder is on PYTHONPATH: so are child processes of tests kept offline."""

from loopback_only import install

install()

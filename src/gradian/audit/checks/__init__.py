"""The checks, one file per family or noun; importing a module enters its checks into the registry."""

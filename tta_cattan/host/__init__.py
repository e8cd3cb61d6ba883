"""Our methods in other frameworks, the hosts: ``python -m tta_cattan.host SCRIPT ...``, or calls from an edited host.

``declare(cfg)`` adds our keys to the host's config before it is loaded; ``register()`` adds our methods to a host
with ``utils.registry``, after its ``import methods``; ``setup_method(model, cfg)`` is one branch in an if-chain.
"""

from tta_cattan.host.ifchain_host import setup as setup_method
from tta_cattan.host.methods import declare
from tta_cattan.host.registry_host import register

"""Not public. Training across machines: rounds, registration and averaging on Flower, batches on gRPC.

=================  ====================================================================================
module             content
=================  ====================================================================================
``app/``           the Flower app: a ``pyproject.toml`` without a line of code, for ``flwr run``
``server_app``     the ServerApp that ``flwr run`` starts
``deployment``     everything that the owner runs, from certificates to the last round
``messenger``      one message per client and round, and the answers as they arrive
``client_app``     the ClientApp: one round on the split service's stream
``superlink``      the owner's SuperLink, on the loopback address
``https_front``    the only way to it from outside: lets Flower's Fleet API through and nothing else
``node``           a client's way to the front, in the place of a SuperNode, and its ClientApp's messages
``processes``      Flower's commands as child processes that never outlive their parent
``adapter``        how a process of ours takes a task of Flower's, and what else is not its public interface
=================  ====================================================================================
"""

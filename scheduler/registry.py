"""The table of commands and verbs: their words, where each is, and what runs of the service that do it are called.

``resnap --help``, the choices of ``--kind``, the labels of metrics and the names that schedules may run are read from
it, and import nothing else.

A verb is one file, ``scheduler/verbs/<verb>.py``, and its row here. Its file declares a ``Verb``
(``scheduler.job.contract``) with what is asked, its run, its view, and how the service does it; a class for its row has
the keys of the JSON, what each shows, and its column (``scheduler.output.records``). From these are made

- the shell: its flags are those settings that the verb takes and the fields of its request, its help is the docstring
  of the request (``cli.asking.command_of``);
- the API: the address that makes a run of it, and the body, if the verb has a ``Door`` (``api.runs``); the rows of its
  partitions in OpenAPI;
- schedules: what they may give to it (``runs.configuration``); the lane in which it waits (``runs.worker``);
- its page, its metrics, and its lines in ``docs/reference.md`` (``python -m tests.reference``).

Where a file declares several, or is called otherwise than the command, rows say so. Commands that print settings or
talk to the service's file are functions with ``@with_settings(...)``, whose docstring is their help; their rows name
them.
"""

from importlib import import_module
from typing import Any, Final, NamedTuple


class CommandRow(NamedTuple):
    """The one-line summary of a command, an example, and where it is declared.

    Attributes:
        kind: what runs of the service are called that do it; None where only the shell may ask for it.
        place: ``module:NAME`` of a verb or a function, below ``scheduler``, or the module of a verb; where that is not
            the one of ``verbs`` with the name of the command, or of two words ``verbs.FIRST:SECOND``.

    """

    summary: str
    example: str
    kind: str | None = None
    place: str | None = None


COMMANDS: Final[dict[str, CommandRow]] = {
    "check": CommandRow(
        "Say for each topic whether tiering can be turned on.",
        "resnap check /var/lib/kafka --server-properties /etc/kafka/server.properties",
    ),
    "scan": CommandRow(
        "Show where producer snapshots are missing, and what that blocks.",
        "resnap scan /var/lib/kafka --topic 'payments*'",
        "scan",
    ),
    "plan": CommandRow("Show what a replay would read and make.", "resnap plan /var/lib/kafka --save plan.json"),
    "regenerate": CommandRow(
        "Rebuild producer snapshots into a directory or store.",
        "resnap regenerate /var/lib/kafka --into /srv/staged",
        "regenerate",
    ),
    "tier": CommandRow(
        "Ship eligible segments with their snapshots to a store.",
        "resnap tier /var/lib/kafka --to s3://tiered/cluster-1 --dry-run",
        "tier",
    ),
    "verify": CommandRow(
        "Compare snapshots with a replay, or read a store back.",
        "resnap verify s3://tiered/cluster-1 --since 7d",
        "verify",
    ),
    "repair": CommandRow("Replace wrong snapshots in a store.", "resnap repair s3://tiered/cluster-1 --dry-run"),
    "explain": CommandRow(
        "Show the batches that made each entry of a snapshot.",
        "resnap explain /var/lib/kafka payments-0 4200 --producer-id 7",
    ),
    "install": CommandRow(
        "Install snapshots beside the segments of a stopped broker.", "resnap install /srv/staged /var/lib/kafka"
    ),
    "restore": CommandRow(
        "Restore partition directories from shipped segments.",
        "resnap restore s3://tiered/cluster-1 --into /var/lib/kafka --topic payments",
    ),
    "export": CommandRow(
        "Write groups' offsets, ACLs, quotas and configuration to a store.",
        "resnap export /var/lib/kafka --to s3://tiered/cluster-1 --keep 288",
        "export",
    ),
    "export-cluster": CommandRow(
        "Write the same, asked of the running cluster.",
        "resnap export-cluster --bootstrap-server broker-1:9092 --to s3://tiered/cluster-1 --keep 288",
        "export-cluster",
        place="verbs.export:CLUSTER_VERB",
    ),
    "retain": CommandRow(
        "Apply a retention to what was shipped.", "resnap retain s3://tiered/cluster-1 --retention 90d --delete"
    ),
    "gc": CommandRow(
        "Delete what killed runs, or brokers, have left in a store.",
        "resnap gc s3://tiered/cluster-1 --older-than 7d --delete",
    ),
    "inspect": CommandRow(
        "Show any file of a log dir or a store.",
        "resnap inspect /var/lib/kafka/payments-0/00000000000000004200.snapshot",
        place="verbs.inspect.file",
    ),
    "doctor": CommandRow(
        "Check what a run needs: Java, log dirs, store, clock.", "resnap doctor /var/lib/kafka s3://tiered/cluster-1"
    ),
    "version": CommandRow(
        "Print the versions of Resnap and of what it runs on.",
        "resnap version --output json",
        place="commands.about:show_version",
    ),
    "config show": CommandRow(
        "Print every setting, its value and its origin.",
        "resnap config show --config /etc/resnap.toml",
        place="commands.about:show_config",
    ),
    "controller image": CommandRow(
        "Show the cluster that a metadata log describes.", "resnap controller image /var/lib/kafka/__cluster_metadata-0"
    ),
    "controller producer-ids": CommandRow(
        "Show which producer ids were used.", "resnap controller producer-ids /var/lib/kafka"
    ),
    "controller config": CommandRow(
        "Show the settings brokers use.",
        "resnap controller config /var/lib/kafka --server-properties /etc/kafka/server.properties",
    ),
    "controller audit": CommandRow("Check that producer ids were allocated.", "resnap controller audit /var/lib/kafka"),
    "remote status": CommandRow(
        "Show what brokers know to be in remote storage.",
        "resnap remote status /var/lib/kafka --store s3://tiered/cluster-1",
        place="verbs.remote_status",
    ),
    "replicas": CommandRow(
        "Find replicas that lost producer state, on a running cluster.",
        "resnap replicas --bootstrap-server localhost:9092",
        "replicas",
    ),
    "fleet status": CommandRow(
        "Say for each topic of the cluster whether tiering can be turned on.",
        "resnap fleet status --config /etc/resnap.toml --bootstrap-server localhost:9092",
    ),
    "fleet gate": CommandRow(
        "Say whether a broker may be stopped now.",
        "resnap fleet gate --broker 2 --config /etc/resnap.toml --bootstrap-server localhost:9092",
    ),
    "announce": CommandRow(
        "Make shipped segments visible to brokers.",
        "resnap announce s3://tiered/cluster-1 --bootstrap-server localhost:9092 --publish",
    ),
    "producer census": CommandRow(
        "Count the producers a broker holds, by topic and age.",
        "resnap producer census /var/lib/kafka --under 3600000",
        "census",
        place="verbs.census",
    ),
    "quota set": CommandRow("Set the producer_ids_rate of a user.", "resnap quota set 100 --user alice"),
    "quota delete": CommandRow("Delete the producer_ids_rate of a user.", "resnap quota delete --user alice"),
    "quota describe": CommandRow("Show the quotas that are set, and where.", "resnap quota describe"),
    "quota simulate": CommandRow(
        "Show which principals a quota would have throttled.",
        "resnap quota simulate /var/lib/kafka --rate 100",
        place="verbs.quota_simulate:SIMULATE",
    ),
    "quota advise": CommandRow(
        "Find a rate that throttles few principals.",
        "resnap quota advise /var/lib/kafka --share 0.95",
        place="verbs.quota_simulate:ADVISE",
    ),
    "serve": CommandRow(
        "Run the service: schedules, HTTP API and web page.",
        "resnap serve --config /etc/resnap.toml",
        place="commands.serve:serve",
    ),
    "runs list": CommandRow(
        "List the runs of the service, the newest first.",
        "resnap runs list --state failed",
        place="commands.runs:list_runs",
    ),
    "runs show": CommandRow(
        "Show one run, or what it did.", "resnap runs show 01jz3e8y6t", place="commands.runs:show_run"
    ),
    "token create": CommandRow(
        "Create a token, and show it once.",
        "resnap token create ci --role operator --expires 30d",
        place="commands.token:create_token",
    ),
    "token list": CommandRow(
        "List all tokens with their roles and states.", "resnap token list", place="commands.token:list_tokens"
    ),
    "token revoke": CommandRow(
        "Revoke a token and the sessions that began with it.",
        "resnap token revoke ci",
        place="commands.token:revoke_token",
    ),
    "demo": CommandRow("Show Resnap at work on a broker's log.", "resnap demo"),
}
"""The commands, by the words that call them, in the order in which ``resnap --help`` lists them."""
GROUPS: Final = {
    "config": "Settings, and where they come from.",
    "controller": "The contents of a cluster's metadata log.",
    "remote": "Remote storage as brokers see it.",
    "fleet": "All brokers of a cluster at once, through the services beside them.",
    "producer": "Producer ids: who holds them.",
    "quota": "Limits on how many new producer ids a user may use (KIP-936).",
    "runs": "Runs of the service, past and waiting.",
    "token": "Tokens for the HTTP API and the web page.",
}
"""Summaries of the words that group several commands."""
KINDS: Final = {row.kind: words for words, row in COMMANDS.items() if row.kind}
"""The words of the command that does the same as a run, by the run's kind."""


def declared_at(words: str) -> Any:  # noqa: ANN401 - a verb, or a function
    """Return what the command of these words is declared as; its module is imported here."""
    first, _, second = words.replace("-", "_").partition(" ")
    module, _, name = (COMMANDS[words].place or f"verbs.{first}:{second.upper()}").partition(":")
    return getattr(import_module(f"resnap.scheduler.{module}"), name or "VERB")

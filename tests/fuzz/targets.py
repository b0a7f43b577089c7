"""What is fuzzed, and how much of each."""

from __future__ import annotations

from fuzz import arguments, commands, models, sounds, tables
from fuzz.engine import Target

TARGETS = {
    target.name: target
    for target in (
        Target("sound", sounds.files, sounds.read_file, 0.25),
        Target("header", sounds.headers, sounds.read_header, 0.12),
        Target("pipe", sounds.pipes, sounds.read_pipe, 0.07),
        Target("card", models.cards, models.read_card, 0.15),
        Target("checkpoint", models.checkpoints, models.read_checkpoint, 0.06),
        Target("geometry", tables.geometries, tables.read_array, 0.12),
        Target("truth", tables.truths, tables.read_truth, 0.07),
        Target("bank", tables.banks, tables.read_bank, 0.04),
        Target("training", tables.trainings, tables.read_training, 0.02),
        Target("option", tables.lists, tables.read_list, 0.02),
        Target("api", arguments.calls, arguments.call_with, 0.06),
        Target("command", commands.lines, commands.run_line, 0.008),
        Target("process", commands.processes, commands.run_process, 0.0001),
    )
}

"""Mutations of planning, and of the check of partitions: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "transformer/planning/hlo.py": (
        "tests/planning/test_hlo.py",
        {
            "loops_run_once": ("times * trips)", "times)"),
            "fusions_without_products": ('(*FUSIONS, "call", "async-start", "custom-call")', '("call",)'),
            "products_of_libraries_uncounted": (
                "if instruction.of_cublas:\n            left",
                "if False:\n            left",
            ),
            "space_to_work_in_is_written": (
                "top_level(instruction.result)[:-1]",
                "top_level(instruction.result)",
            ),
            "sums_not_multiplied": ("2.0 * math.prod(dot.shape) * summed", "2.0 * math.prod(dot.shape)"),
            "holes_are_inputs": ("& (at % hole == 0)", ""),
            "all_of_an_operand_is_read": ("if whole or not uses:", "if True:"),
            "what_is_passed_on_is_written": ("- sum(in_memory(nested.result) for nested in passed_on)", ""),
            "asynchronous_fusions_write_their_operands": (
                "in_memory(fusion.written)",
                "in_memory(fusion.result)",
            ),
            "asynchronous_fusions_move_all": (
                "if instruction.opcode in FUSIONS:",
                'if instruction.opcode == "fusion":',
            ),
            "unwritten_memory_is_written": (" or instruction.allocates:", ":"),
            "updates_of_everything": ("- nbytes(nested.result)\n        return max", "\n        return max"),
        },
    ),
    "transformer/planning/hlo_types.py": (
        "tests/planning/test_hlo.py",
        {"on_the_chip_is_in_memory": ('not re.search(r"S\\([1-9]", layout)', "True")},
    ),
    "transformer/planning/collectives.py": (
        "tests/planning/test_collectives.py",
        {
            "order_of_axes_ignored": (
                "devices.transpose(_numbers(order)) if order else",
                "devices if order else",
            ),
            "inner_parts_of_axes_ignored": ("(name, outer // done, False), ", ""),
            "scatter_of_the_part": ('(ways if operation == "reduce-scatter" else 1)', "1"),
            "all_reduce_sends_once": ('(2 if self.operation == "all-reduce" else 1)', "1"),
            "fused_scatter_is_an_all_reduce": (
                'dataclasses.replace(nested, operation="reduce-scatter")',
                "nested",
            ),
        },
    ),
    "transformer/planning/hardware.py": (
        "tests/planning/test_hardware.py",
        {
            "one_card_for_a_group": ("moved.sent / (moved.ways - 1) * (parts - 1)", "share"),
            "ends_are_joined": ("2 if span == size >= chip.wrapped else 1", "2"),
            "links_are_shared_in_turn": (" * len(group) / len(chips)", ""),
            "steps_between_hosts_are_near": ("between * far)", "between * near)"),
            "data_have_the_whole_rate": ("sending / share", "sending"),
            "slowest_protocol": ("min(times) if steps", "max(times) if steps"),
            "one_round_of_steps": ("rounds * (members - 1), rounds", "members - 1, rounds"),
            "one_round_between_hosts": ("rounds * (hosts - 1)", "hosts - 1"),
            "latency_is_divided": ("chip.efficiency * (before", "(before"),
            "the_long_way_round": ("np.minimum(steps, sizes - steps)", "steps"),
            "first_group_counts": (
                "max((_between_gpus(moved, chip, group) for group in groups), key=operator.itemgetter(1))",
                "_between_gpus(moved, chip, groups[0])",
            ),
        },
    ),
    "transformer/planning/schedule.py": (
        "tests/planning/test_schedule.py",
        {
            "networks_without_limit": (
                "network = max(network, time.now) + seconds",
                "network = time.now + seconds",
            ),
            "nothing_waits": ("time.exposed += waited", "pass"),
            "channels_start_again": (
                "known = channel in under_way or channel in above",
                "known = channel in above",
            ),
            "loops_start_channels_again": ("or channel in above", ""),
            "kernels_run_once": ("sum(times for label", "sum(1 for label"),
            "asynchronous_fusions_take_no_time": (" and instruction.opcode not in FUSIONS", ""),
            "products_and_memory": ("if products >= memory:", "if True:"),
        },
    ),
    "transformer/planning/memory.py": (
        "tests/planning/test_plan.py::test_rematerialisation_saves_the_inputs_of_blocks "
        "tests/planning/test_plan.py::test_microbatches_save_a_part",
        {
            "inputs_are_saved": (
                "for variable in results if id(variable) not in invars}",
                "for variable in results}",
            ),
            "whole_batches_are_saved": ("(x.shape[0] // parts, *x.shape[1:])", "x.shape"),
        },
    ),
    "transformer/planning/search.py": (
        "tests/planning/test_search.py",
        {
            "given_meshes_change": ('not in (value, "-1")', "is None"),
            "more_than_fits": ("if candidate.memory < FILLED * chip.usable:", "if True:"),
            "slowest_first": ('sorted(fitting, key=operator.attrgetter("seconds"))', "fitting"),
            "one_mesh_alone": ("further[: most - len(ways)]", "[]"),
        },
    ),
    "transformer/planning/plan.py": (
        "tests/planning/test_search.py::test_the_share_of_the_rates_is_that_of_the_chip_or_the_given_one",
        {
            "every_chip_is_perfect": (
                "efficiency=chip.efficiency if chip else",
                "efficiency=1.0 if chip else",
            ),
            "the_given_share_is_lost": ("if chip and efficiency:", "if False:"),
        },
    ),
    "transformer/training/partition.py": (
        "tests/training/test_partition.py",
        {
            "anything_may_be_whole": ("if share > MAX_WHOLE:", "if share > 1:"),
            "meant_to_be_whole_is_refused": (
                "(_is_meant(box) or _is_divided(sharding))",
                "_is_divided(sharding)",
            ),
            "tensor_counts_as_divided": (
                "axis in STATE for",
                'axis in (*STATE, "tensor") for',
            ),
        },
    ),
}

"""Mutations of `transformer/data/sources`: file -> (tests, {name: (text, replacement)})."""

EDITS = {
    "transformer/data/sources/derived/span_corruption.py": (
        "tests/data/sources/test_spans.py",
        {
            "one_span": ("round(out / self.span), 1), out, count - out)", "1, 1), out, count - out)"),
            "spans_of_nothing": ("replace=False)) + 1", "replace=False))"),
            "all_records_alike": ("default_rng([self._seed, index])", "default_rng(self._seed)"),
            "one_denoiser": ("index % len(self._denoisers)", "0"),
            "words_of_another_part": ("[part * self._words : (part + 1) * self._words]", "[: self._words]"),
            "single_words": ("(count + self._words - 2) // self._words", "-(-count // self._words)"),
            "the_end_is_lost": ('(source + "".join(words[end:])).strip()', "source.strip()"),
            "same_identity": ('"spans", rule)', '"spans")'),
            "texts_of_another_field": ('"field": text}', '"field": "text"}'),
            "any_fields": ('or "target" not in options.asked', ""),
        },
    ),
    "transformer/data/sources/options.py": (
        "tests/data/test_overlap.py tests/data/sources/test_blocks.py",
        {
            "split_by_answers": ("return value if self.split_by else before_answer(value)", "return value"),
            "greetings_are_answers": ("if i > first and role", "if role"),
        },
    ),
    "transformer/data/sources/record_splits.py": (
        "tests/data/test_overlap.py tests/data/sources/test_blocks.py",
        {
            "digits_from_the_end": (">u2", "<u2"),
            "answers_decide": ("WRITE(deciding(value))).strip()", "WRITE(value)).strip()"),
            "space_decides": ("WRITE(deciding(value))).strip()", "WRITE(deciding(value)))"),
            "half_pairs_have_no_key": (
                'key.encode("utf-8", "surrogatepass")',
                'key.encode("utf-8", "replace")',
            ),
        },
    ),
    "transformer/data/sources/columnar.py": (
        "tests/data/sources/test_parquet.py tests/data/sources/test_saved_dataset.py "
        "tests/data/sources/test_left_out.py "
        "tests/data/sources/test_blocks.py::test_groups_of_rows",
        {
            "keys_of_other_rows": ("rows = rows_n.tolist()", "rows = range(len(rows_n))"),
            "features_are_objects": ("if isinstance(value, dict)}", "if True}"),
            "categories_unread": (
                "kind.value_type if types.is_dictionary(kind)",
                "kind if types.is_dictionary(kind)",
            ),
            "times_are_numbers": ("and not types.is_temporal(kind)", "and True"),
            "one_of_several_texts": (
                "return self._options.alternatives(",
                "return [] and self._options.alternatives(",
            ),
            "row_of_the_group_before": (
                "bisect.bisect(self._firsts, row) - 1",
                "bisect.bisect_left(self._firsts, row) - 1",
            ),
            "rows_of_each_group_from_0": ("yield first + kept_n[:, None]", "yield kept_n[:, None]"),
            "rows_without_text": ("kept_n = kept_n[~lacks_n]", "pass"),
            "rows_without_label": (
                "[name for name in self._options.asked if",
                "[name for name in [self.field] if",
            ),
            "optional_fields_required": ("if name not in self._options.optional]", "]"),
            "nulls_uncounted": ("+= int(lacks_n.sum())", "+= 0"),
        },
    ),
    "transformer/data/sources/record_files.py": (
        "tests/data/sources/test_parquet.py tests/data/sources/test_left_out.py "
        "tests/data/sources/test_blocks.py",
        {
            "blocks_without_records_have_keys": ("if with_shares and len(block_nk):", "if with_shares:"),
            "every_split_the_whole": ("belong(self._split, load", 'belong("train", load'),
            "other_nulls_in_one_index": ("sorted(options.optional), options.rule", "options.rule"),
        },
    ),
    "transformer/data/sources/line_files.py": (
        "tests/data/sources/test_line_files.py tests/data/sources/test_left_out.py "
        "tests/data/sources/test_blocks.py "
        "tests/data/sources/test_work.py",
        {
            "errors_of_a_whole_block": (
                "except (ValueError, LookupError, TypeError):",
                "except (LookupError, TypeError):",
            ),
            "fields_of_a_whole_block": (
                "except (ValueError, LookupError, TypeError):",
                "except (ValueError, TypeError):",
            ),
            "lines_of_other_json": (
                "except (ValueError, LookupError, TypeError):",
                "except (ValueError, LookupError):",
            ),
            "empty_lines_have_keys": (
                'map(bytes.strip, self._map(file)[start:end].split(b"\\n")) if line]',
                'map(bytes.strip, self._map(file)[start:end].split(b"\\n"))]',
            ),
            "places_of_all_records": (
                "self._options.check_unread(record, place)",
                "self._options.check_unread(record, lambda said=place(): said)",
            ),
            "columns_shift": ("if len(columns) != len(names):", "if False:"),
            "empty_lines_are_records": (
                "if not data[slice(*lines_n3[i, 1:].tolist())].strip()]",
                "if False]",
            ),
            "empty_lines_uncounted": ('left_out["empty line"] += len(empty)', "pass"),
        },
    ),
    "transformer/data/sources/json_forms.py": (
        "tests/data/test_formats.py",
        {
            "arrays_are_lines": ('== b"["', '== b"("'),
            "one_field_within_another": ('name.split(".")', 'name.rsplit(".", 0)'),
        },
    ),
    "transformer/data/sources/packed_files.py": (
        "tests/data/sources/test_packed_files.py",
        {
            "nul_is_text": ('if b"\\0" in head', "if False"),
            "signatures_are_not_known": ("== signature", "== None"),
            "the_first_of_several": ("if len(members) != 1", "if not members"),
            "damage_is_a_traceback": ('getattr(error, "errno", None)', "True"),
            "suffixes_in_lower_case": ("path.suffix.lower()", "path.suffix"),
        },
    ),
    "transformer/json_text.py": (
        "tests/test_json_text.py tests/faults/test_untrusted_files.py tests/data/sources/test_blocks.py",
        {
            "several_values_of_a_line": ("if end < len(line):", "if False:"),
            "depth_is_an_error_of_its_own": (
                "(ValueError, RecursionError) as error:",
                "ValueError as error:",
            ),
        },
    ),
    "transformer/data/sources/files.py": (
        "tests/faults/test_data_faults.py "
        "tests/data/sources/test_sources.py::test_a_path_that_exists_is_that_path "
        "tests/data/test_overlap.py::test_a_file_is_read_once_however_it_is_reached "
        "tests/data/sources/test_work.py::test_documents_are_written_by_their_loss",
        {
            "line_ends_of_each_place": (
                "functools.lru_cache(64)(self._find_line_ends)",
                "self._find_line_ends",
            ),
            "links_are_other_files": ("os.stat(path)[1:3]", "(len(by_inode),)"),
            "broken_links_are_left_out": ("if path.is_symlink() and not path.exists()]:", "if False]:"),
            "folders_are_patterns": (
                "for parent in (path, *path.parents)",
                "for parent in (path.parents[-1],)",
            ),
        },
    ),
    "transformer/data/sources/aligned_files.py": (
        "tests/data/sources/test_line_files.py tests/data/test_overlap.py tests/data/sources/test_work.py",
        {"order_is_ignored": ("if not options.divide or options.by_place:", "if not options.divide:")},
    ),
    "transformer/data/sources/csv_files.py": (
        "tests/data/sources/test_blocks.py tests/data/sources/test_left_out.py "
        "tests/data/sources/test_sources.py",
        {
            "lines_are_rows": ("if len(rows) == stop - line and ", "if "),
            "any_number_of_values": ("and {*map(len, rows)} <= {0, count}", ""),
            "names_are_a_record": ("there_n[0] &= line > 0", "there_n[0] &= True"),
            "first_rows_of_blocks_are_names": ("there_n[0] &= line > 0", "there_n[0] &= False"),
            "empty_lines_uncounted": ("+= int((~there_n).sum())", "+= 0"),
            "carriage_returns_within_lines": ("""if '"' in text or "\\r" in text:""", """if '"' in text:"""),
            "errors_of_a_whole_block": ("except (csv.Error, UserError):", "except csv.Error:"),
            "quotes_of_a_whole_block": ("except (csv.Error, UserError):", "except UserError:"),
            "empty_lines_are_values": ("line.split(separator) if line else []", "line.split(separator)"),
            "line_of_a_block": (
                "yield first, line + reader.line_num, values",
                "yield first, reader.line_num, values",
            ),
            "first_line_of_a_block": ("first = line + reader.line_num + 1", "first = reader.line_num + 1"),
        },
    ),
    "transformer/data/sources/squad.py": (
        "tests/data/sources/test_blocks.py::test_questions_of_paragraphs "
        "tests/data/encoders/test_question_answering.py",
        {
            "paragraphs_of_other_fields": ("[1] * len(records) if names else counts", "counts"),
            "questions_of_one_paragraph": ("                if number:\n", "                if True:\n"),
            "file_of_all_records": ("[*itertools.compress(files, mine_n)]", "files"),
            "whole_place": ("(article_number, paragraph_number, number))", "())"),
        },
    ),
}

"""Bugs that are easy to write and hard to see, each with the gate that must catch it: mutating.py tries them.

A mutant is a replacement in one file. Where the code has moved on, write it anew for what is there now: the
promise that it breaks is still to be kept. A defect that was found and mended belongs here, as it was.
"""

from mutant import Mutant
from mutants_of_data import OF_DATA

RATES = [
    Mutant(
        "what had failed before counts as staged just now",
        "stager/jobs/job.py",
        "under_way - self.ended_before, 0)",
        "under_way, 0)",
        "tests/test_rate.py::test_what_had_failed_or_was_staged_for_the_plan_is_no_part_of_a_rate",
    ),
    Mutant(
        "what a crowded machine taught is taken for its own speed",
        "stager/jobs/rate.py",
        "return max(self.fetching_s, self.preparing_s * crowding)",
        "return max(self.fetching_s, self.preparing_s)",
        "tests/test_rate.py::test_what_a_crowded_machine_taught_holds_on_one_that_is_idle",
    ),
]

DEPARTURES = [
    Mutant(
        "an object's version stands for a sample under another key",
        "stager/reader/values.py",
        " and parts[0].info.key == key\n",
        "\n",
        "tests/test_tables.py::test_a_row_that_names_another_file_of_the_same_size_and_time_has_its_bytes",
    ),
    Mutant(
        "a sparse index stores into a hole",
        "stager/dispatch/tasks.py",
        "        dataset.index.make_room(samples)\n",
        "",
        "tests/test_computed_cache.py::test_a_lot_of_computed_samples_has_room_in_the_index_before_a_worker_has_it",
    ),
    Mutant(
        "more samples of a rule get new numbers, all of them",
        "stager/scan/numbering.py",
        "if len(here) and segment.rule.identity == rule.identity:",
        "if False:",
        "tests/test_computed.py::test_more_samples_of_a_rule_keep_the_numbers_of_those_that_were",
    ),
    Mutant(
        "another seed has the samples of the first",
        "stager/scan/numbering.py",
        " and segment.rule.identity == rule.identity",
        "",
        "tests/test_computed_cache.py::test_another_seed_stages_anew_and_the_first_one_finds_what_it_had",
    ),
    Mutant(
        "a brick keeps its number though a chunk of it has changed",
        "stager/scan/numbering.py",
        "here.less(rule.changed(segment.rule, here))",
        "here",
        "tests/test_listing.py::test_only_bricks_of_chunks_that_changed_came_or_went_have_new_numbers",
    ),
    Mutant(
        "a chunk that was not listed is read",
        "stager/reader/samples/computed/chunked.py",
        'return Part(Absent(info.key, 0, ""))',
        "return part",
        "tests/test_listing.py::test_only_bricks_of_chunks_that_changed_came_or_went_have_new_numbers",
    ),
    Mutant(
        "words of evicted samples stay",
        "stager/cache/gone/departures.py",
        "        dataset.index.clear(samples)\n        touched = []\n",
        "        touched = []\n",
        "tests/test_departures.py::test_a_row_is_punched_when_no_word_points_to_it_any_more_and_the_catalog_calls_it_dead",
    ),
    Mutant(
        "rows are punched before their words are cleared",
        "stager/cache/gone/departures.py",
        "        dataset.index.clear(samples)\n        touched = []\n"
        "        for number in np.unique(shard_of(words[is_resident(words)])).tolist():\n"
        "            shard = self._catalog.shard(number)\n"
        "            shard.samples[row_of(words[shard_of(words) == number])] = -1\n"
        "            touched.append(shard)\n",
        "        touched = []\n"
        "        for number in np.unique(shard_of(words[is_resident(words)])).tolist():\n"
        "            shard = self._catalog.shard(number)\n"
        "            shard.samples[row_of(words[shard_of(words) == number])] = -1\n"
        "            touched.append(shard)\n"
        "            self.give_back_dead(dataset, shard)\n"
        "        dataset.index.clear(samples)\n",
        "tests/test_departures.py::test_a_row_is_punched_when_no_word_points_to_it_any_more_and_the_catalog_calls_it_dead",
    ),
    Mutant(
        "rows are punched before the catalog calls them dead",
        "stager/cache/gone/departures.py",
        "        self._catalog.put_samples(left)\n"
        "        dataset.departure_log.add(reason, detail, samples)\n"
        "        self._tell(dataset, samples)\n"
        "        return self._remove(empty) + sum(self.give_back_dead(dataset, shard) for shard in left)\n",
        "        dataset.departure_log.add(reason, detail, samples)\n"
        "        self._tell(dataset, samples)\n"
        "        freed = self._remove(empty) + sum(self.give_back_dead(dataset, shard) for shard in left)\n"
        "        self._catalog.put_samples(left)\n"
        "        return freed\n",
        "tests/test_departures.py::test_a_row_is_punched_when_no_word_points_to_it_any_more_and_the_catalog_calls_it_dead",
    ),
    Mutant(
        "the catalog never hears of dead rows",
        "stager/cache/gone/departures.py",
        "        self._catalog.put_samples(left)\n",
        "",
        "tests/test_departures.py::test_what_is_evicted_is_not_there_after_a_restart_either",
    ),
    Mutant(
        "a whole shard goes and its words stay",
        "stager/cache/gone/departures.py",
        "            dataset.index.clear(samples[at])\n",
        "",
        "tests/test_departures.py::test_a_shard_is_punched_and_unlinked_when_neither_a_word_nor_the_catalog_has_it_any_more",
    ),
    Mutant(
        "a shard's file goes before its row in the catalog",
        "stager/cache/gone/departures.py",
        "        self._catalog.remove_shards(shard.number for shard in shards)\n        freed = 0\n"
        "        for shard in shards:\n"
        "            freed += self._remove_file("
        "self._open[shard.dataset].path_of(shard), self.bytes_of(shard))\n"
        "            self._holes.pop(shard.number, None)\n",
        "        freed = 0\n"
        "        for shard in shards:\n"
        "            freed += self._remove_file("
        "self._open[shard.dataset].path_of(shard), self.bytes_of(shard))\n"
        "            self._holes.pop(shard.number, None)\n"
        "        self._catalog.remove_shards(shard.number for shard in shards)\n",
        "tests/test_departures.py::test_a_shard_is_punched_and_unlinked_when_neither_a_word_nor_the_catalog_has_it_any_more",
    ),
    Mutant(
        "a sample that another shard has, too, is not pointed at it",
        "stager/cache/gone/departures.py",
        "            dataset.index.publish(samples[left != 0], left[left != 0])\n",
        "",
        "tests/test_departures.py::test_a_sample_of_two_shards_stays_resident_when_one_of_them_goes",
    ),
    Mutant(
        "a catalog made anew has both rows of a sample",
        "stager/cache/start/rebuild.py",
        "            numbers[here[again]] = -1\n",
        "",
        "tests/test_departures.py::test_a_catalog_made_anew_has_each_sample_once_so_what_is_evicted_then_stays_away",
    ),
    Mutant(
        "readers are not told that shards have gone",
        "stager/cache/gone/departures.py",
        "            self._open[number].index.tell_gone()\n",
        "            pass\n",
        "tests/test_departures.py::test_readers_are_told_when_shards_have_gone_so_that_they_let_go_of_them",
    ),
    Mutant(
        "sessions do not hear of shards that were evicted",
        "stager/cache/gone/departures.py",
        "            self._tell(dataset, samples[left == 0])\n",
        "",
        "tests/test_departures.py::test_whoever_must_know_hears_of_samples_that_are_gone_whichever_way_they_go",
    ),
    Mutant(
        "a version that somebody reads is given back",
        "stager/cache/gone/departures.py",
        "                stale = stale[~dataset.version(digest).has(stale)]\n",
        "                pass\n",
        "tests/test_departures.py::test_rows_that_no_version_has_go_unless_they_are_pinned_or_somebody_reads_their_version",
    ),
    Mutant(
        "what is pinned is given back once it is stale",
        "stager/cache/gone/departures.py",
        "np.isin(shard_of(dataset.index.words[stale]), self._catalog.evictable(dataset.id))",
        "slice(None)",
        "tests/test_departures.py::test_rows_that_no_version_has_go_unless_they_are_pinned_or_somebody_reads_their_version",
    ),
    Mutant(
        "pins are not looked at when room is made",
        "stager/eviction/evictor.py",
        "        free = np.isin(shard_of(words), self._cache.catalog.evictable(dataset.id))\n",
        "        free = is_resident(words)\n",
        "tests/test_departures.py::test_what_is_pinned_does_not_make_room_for_what_a_reader_needs",
    ),
    Mutant(
        "the catalog calls pinned shards evictable",
        "stager/catalog/catalog.py",
        'FROM shards WHERE dataset = ? AND NOT is_pinned"',
        'FROM shards WHERE dataset = ?"',
        "tests/test_departures.py::test_what_is_pinned_does_not_make_room_for_what_a_reader_needs",
    ),
]

INDEX = [
    Mutant(
        "an index that grows is another file",
        "stager/cache/index_writer.py",
        "        if count > len(self.words):\n            self._map(count)\n",
        "        if count > len(self.words):\n"
        "            before = self.path.read_bytes()\n"
        "            self.path.unlink()\n"
        "            self.path.write_bytes(before)\n"
        "            self._map(count)\n",
        "tests/test_index.py::test_an_index_grows_in_place_under_its_readers",
    ),
    Mutant(
        "an index that is retired keeps its words",
        "stager/cache/index_writer.py",
        "                        mapped[start:stop] = bytes(stop - start)\n",
        "                        pass\n",
        "tests/test_index.py::test_a_retired_index_has_no_words_and_says_so_to_whoever_maps_it",
    ),
    Mutant(
        "an index does not say that it is retired",
        "stager/cache/index_writer.py",
        '                        struct.pack_into("<Q", mapped, FLAGS_AT, RETIRED)\n',
        "                        pass\n",
        "tests/test_index.py::test_a_retired_index_has_no_words_and_says_so_to_whoever_maps_it",
    ),
    Mutant(
        "the parity of a word is not looked at",
        "stager/reader/index.py",
        "(words >> _TOP_SHIFT & _TOP_MASK == _TOP_PRESENT) & ~_is_odd(words))",
        "words >> _TOP_SHIFT & _TOP_MASK == _TOP_PRESENT)",
        "tests/test_index.py::test_a_word_with_a_flipped_bit_is_damaged_and_nothing_else",
    ),
    Mutant(
        "the parity of a word is not looked at in C",
        "stager/reader/c/samples.c",
        "(((word) >> 56 & 0xe7) == 0x80 && !__builtin_parityll(word))",
        "(((word) >> 56 & 0xe7) == 0x80)",
        "tests/test_gather.py::test_any_word_is_understood_as_the_index_has_it",
    ),
    Mutant(
        "a damaged header is not mended",
        "stager/cache/index_writer.py",
        "        self._mapped[: IDENTITY.size] = self._identity\n",
        "",
        "tests/test_index.py::test_a_damaged_header_is_mended_in_place_under_its_readers",
        error="CacheError: .*not an index",
    ),
    Mutant(
        "shard numbers are used again after a lost catalog",
        "stager/cache/index_writer.py",
        "            self._header[SHARDS_AT // 8] = highest\n",
        "            pass\n",
        "tests/test_cache.py::test_shard_numbers_are_not_used_twice_after_a_lost_catalog_although_their_files_are_gone",
    ),
    Mutant(
        "shard numbers of an index that has gone are used again after a lost catalog",
        "stager/catalog/catalog.py",
        "            first = used + 1 + LOST_AHEAD\n",
        "            first = used + 1\n",
        "tests/test_cache.py::test_shard_numbers_are_not_used_twice_after_a_lost_catalog_and_an_index_that_has_gone",
    ),
]

READERS = [
    Mutant(
        "the word is not compared after the copy, in C",
        "stager/reader/c/samples.c",
        "word && __atomic_load_n(&shards->index[numbers[first + i]], __ATOMIC_ACQUIRE) == word;",
        "word != 0;",
        "tests/test_gather.py::test_a_row_whose_word_goes_while_it_is_copied_is_not_read",
    ),
    Mutant(
        "the word is not compared after the copy, without C",
        "clients/stager_client/reading/rows.py",
        "                words[at] = word if self._index[number] == word else 0\n",
        "                words[at] = word\n",
        "tests/test_gather.py::test_a_row_whose_word_goes_while_it_is_copied_is_not_read",
    ),
    Mutant(
        "the word is not compared after a sample was taken",
        "clients/stager_client/reading/reader.py",
        "        if moved:\n            missing = sorted({*missing, *moved})\n",
        "        if moved:\n            pass\n",
        "tests/test_reader.py::test_a_sample_that_is_evicted_while_it_is_copied_is_missing",
    ),
    Mutant(
        "an error is told before the word is looked at again",
        "clients/stager_client/reading/reader.py",
        "            corrupt = [at for at in corrupt if at not in moved]\n",
        "",
        "tests/test_reader.py::test_a_shard_that_goes_before_its_turn_is_missing_and_not_corrupt",
    ),
    Mutant(
        "no checksum is compared one by one",
        "clients/stager_client/reading/reader.py",
        "        if not is_checked:\n",
        "        if False:\n",
        "tests/test_reader.py::test_a_bit_that_has_flipped_is_found_at_the_first_touch",
    ),
    Mutant(
        "a piece is read of a row that was never checked, in C",
        "stager/reader/c/pieces.c",
        "stager_find_sample(shards, numbers[i], checked, i);",
        "stager_find_sample(shards, numbers[i], NULL, i);",
        "tests/test_pieces.py::test_only_rows_that_were_checked_and_noted_are_found",
    ),
    Mutant(
        "a piece is read of a row that was never checked, without C",
        "clients/stager_client/reading/rows.py",
        "if not is_resident(word) or self._checked[number] != word or place is None:",
        "if not is_resident(word) or place is None:",
        "tests/test_pieces.py::test_only_rows_that_were_checked_and_noted_are_found",
    ),
    Mutant(
        "the word is not compared after pieces were copied, in C",
        "stager/reader/c/pieces.c",
        "if (words[i] && __atomic_load_n(&shards->index[numbers[i]], __ATOMIC_ACQUIRE) != words[i])",
        "if (0)",
        "tests/test_pieces.py::test_a_row_that_cannot_be_read_whole_or_whose_word_goes_is_lost_alone",
    ),
    Mutant(
        "the word is not compared after pieces were copied, without C",
        "clients/stager_client/reading/rows.py",
        "        words[self._index[found.numbers] != words] = 0\n",
        "",
        "tests/test_pieces.py::test_a_row_that_cannot_be_read_whole_or_whose_word_goes_is_lost_alone",
    ),
    Mutant(
        "what a cut says of a row that has gone is told",
        "clients/stager_client/reading/reader.py",
        "                if self.index.words[numbers[row]] == found.words[row]:\n                    raise",
        "                if True:\n                    raise",
        "tests/test_reader.py::test_a_row_that_goes_before_its_part_is_chosen_is_missing_and_no_error",
        error="UsageError",
    ),
    Mutant(
        "a position is counted in draws where the order has several rows a draw",
        "stager/sessions/session.py",
        "self._rows.before(position) if self._rows else position",
        "position",
        "tests/test_pieces.py::test_the_service_stages_the_rows_of_a_draw_and_counts_in_rows_how_far_a_reader_is",
    ),
    Mutant(
        "a cut goes by the place in the batch, and not by the draw",
        "clients/stager_client/batches/assembly.py",
        "            yield self.make(order[of], of, seed, epoch, stopped)\n",
        "            yield self.make(order[of], np.arange(len(of)), seed, epoch, stopped)\n",
        "tests/test_cuts.py::test_each_draw_has_its_window_at_the_first_touch_and_afterwards",
        is_slow=True,
    ),
    Mutant(
        "no checksum is compared in a batch",
        "clients/stager_client/reading/reader.py",
        "                self._check(int(fresh[at]), tags[at], opened, row, words[at], arrays, {})\n",
        "                pass\n",
        "tests/test_reader.py::test_a_bit_that_has_flipped_is_found_at_the_first_touch",
    ),
    Mutant(
        "what was right once is not checked under another word, in C",
        "stager/reader/c/samples.c",
        "(checked && checked[number] != word)",
        "(checked && !checked[number])",
        "tests/test_gather.py::test_only_what_is_resident_and_was_checked_is_read",
    ),
    Mutant(
        "a state is of so many samples, whichever",
        "clients/stager_client/samples.py",
        '        return digest_of(told, self.reader.records.values("tag", self.numbers).tobytes())\n',
        "        return digest_of(told)\n",
        "tests/test_reader.py::test_a_state_does_not_fit_a_run_in_which_another_sample_has_failed",
    ),
    Mutant(
        "the rank is that of the moment the loader is made",
        "clients/stager_client/batches/loader.py",
        "        self._ranks_now = ranks\n",
        "        fixed = ranks()\n        self._ranks_now = lambda: fixed\n",
        "tests/test_ranks.py::test_a_loader_made_before_torch_distributed_starts_reads_the_part_of_its_rank",
        is_slow=True,
    ),
    Mutant(
        "ranks may change between two epochs",
        "clients/stager_client/batches/loader.py",
        "        if self._ranks_read not in (None, now):\n",
        "        if False:\n",
        "tests/test_ranks.py::test_ranks_that_change_after_the_first_iteration_are_refused",
        error="KeyError|assert",
        is_slow=True,
    ),
    Mutant(
        "the transform of a data set is left out",
        "clients/stager_client/torch.py",
        "        _refuse_transforms(data)\n",
        "",
        "tests/test_loader.py::test_a_data_set_with_transforms_of_its_own_is_refused_with_a_way_out",
        is_slow=True,
    ),
    Mutant(
        "a call waits twice as long as it may",
        "stager/reader/service.py",
        "time.monotonic() + timeout_s, stopped\n",
        "time.monotonic() + 2 * timeout_s, stopped\n",
        "tests/test_service_calls.py::test_a_call_ends_at_its_deadline_by_the_clock_and_not_later",
    ),
    Mutant(
        "a miss waits twice as long as it may",
        "clients/stager_client/samples.py",
        "        deadline = time.monotonic() + self.timeout_s\n        places = missing + corrupt\n",
        "        deadline = time.monotonic() + 2 * self.timeout_s\n        places = missing + corrupt\n",
        "tests/test_reader.py::test_a_miss_ends_at_its_deadline_by_the_clock_and_not_later",
    ),
    Mutant(
        "a name stands in a URL as it is",
        "stager/reader/service.py",
        '            url = API + quote(path, errors="surrogateescape")  # with names of others in it\n',
        "            url = API + path\n",
        "tests/test_api.py::test_a_name_nobody_has_is_told_whatever_is_in_it",
        error="NoService",
        is_slow=True,
    ),
    Mutant(
        "every kind of error is made of a message and a hint",
        "stager/errors.py",
        '    return kind(**{name: str(value.get(name, "")) for name in ("message", "hint", *kind.more)})\n',
        '    return kind(value["message"], value["hint"])\n',
        "tests/test_errors.py::test_an_error_of_any_kind_comes_through_json_as_it_was",
    ),
]

VERSIONS = [
    Mutant(
        "samples are matched by their tags alone",
        "stager/scan/scan.py",
        '    for name in ("key", "version"):\n        ours = (',
        "    for name in ():\n        ours = (",
        "tests/test_manifest.py::test_two_samples_of_one_tag_are_told_apart_by_key_and_version",
    ),
    Mutant(
        "new samples take the numbers of others",
        "stager/scan/scan.py",
        "    first = 0 if known.relist else len(known.records)\n",
        "    first = 0\n",
        "tests/test_manifest.py::test_unchanged_samples_keep_their_numbers_in_a_later_scan",
    ),
    Mutant(
        "files are swept before indexes are in line",
        "stager/cache/cache.py",
        "        for row in self.catalog.datasets():\n            manifest = manifests.get(row.name)\n",
        "        remove_strays(self.directory, self.catalog, self.open.values())\n"
        "        for row in self.catalog.datasets():\n            manifest = manifests.get(row.name)\n",
        "tests/test_departures.py::test_a_start_has_its_indexes_in_line_before_it_removes_a_file",
    ),
    Mutant(
        "shards are swept before indexes that nobody has are cleared",
        "stager/cache/start/startup.py",
        '    for path in datasets_dir(cache_dir).glob("*/index-*"):\n'
        "        if path not in used:\n            retire(path)\n",
        '    for path in datasets_dir(cache_dir).glob("*/shards/*"):\n'
        "        if path.parents[1] not in {dataset.directory for dataset in datasets}:\n"
        "            path.unlink()\n"
        '    for path in datasets_dir(cache_dir).glob("*/index-*"):\n'
        "        if path not in used:\n            retire(path)\n",
        "tests/test_departures.py::test_a_start_clears_an_index_that_nobody_has_before_it_removes_what_that_points_to",
    ),
    Mutant(
        "indexes are not brought in line at a start",
        "stager/cache/cache.py",
        "        index.replace_all(numbers, words[numbers])\n",
        "",
        "tests/test_cache.py::test_what_is_recorded_is_there_after_a_restart_and_nothing_else",
    ),
    Mutant(
        "a manifest has its name after the catalog has it",
        "stager/cache/cache.py",
        "        scan.path.replace(path)\n        scan.joins.unlink()\n        fsync_path(directory)\n",
        "        put = type(self.catalog).put_list\n"
        "        self.catalog.put_list = lambda row: (put(self.catalog, row), scan.path.replace(path))\n"
        "        scan.joins.unlink()\n",
        "tests/test_cache.py::test_a_scan_is_under_its_final_names_before_the_catalog_has_it",
    ),
    Mutant(
        "a scan gives other recipes no room for new samples",
        "stager/cache/cache.py",
        "        for dataset in self.of_name(spec.name) if not len(moved) else ():\n",
        "        for dataset in [known] if known is not None and not len(moved) else ():\n",
        "tests/test_cache.py::test_an_object_that_is_added_has_its_place_by_every_recipe",
    ),
    Mutant(
        "leases count for nothing",
        "stager/sessions/leases.py",
        "            held.setdefault(row.dataset, set()).add(row.manifest)\n",
        "            pass\n",
        "tests/test_leases.py::test_a_version_is_held_as_long_as_its_process_lives_however_silent_it_is",
    ),
    Mutant(
        "the lease of a dead process is kept for ever",
        "stager/sessions/leases.py",
        "        if row.began and self._began(row.pid) == row.began:\n",
        "        if row.began:\n",
        "tests/test_leases.py::test_the_lease_of_a_process_that_has_ended_is_let_go_of",
    ),
    Mutant(
        "a process that began later holds the lease of its number",
        "stager/sessions/leases.py",
        "        if row.began and self._began(row.pid) == row.began:\n",
        "        if row.began and self._began(row.pid):\n",
        "tests/test_leases.py::test_the_lease_of_a_process_that_has_ended_is_let_go_of",
    ),
    Mutant(
        "leases are forgotten at a restart",
        "stager/sessions/leases.py",
        "        self._by_session = {row.session: row for row in catalog.leases()}\n",
        "        self._by_session = {}\n",
        "tests/test_leases.py::test_leases_outlive_us_and_nothing_is_given_back_before_others_could_say_hello",
    ),
]

DURABLE = [
    Mutant(
        "the marker is not synced",
        "stager/cache/start/lock.py",
        '    with atomic_path(directory / "CACHE", directory) as scratch:\n'
        "        scratch.write_text(MARKER)\n",
        '    (directory / "CACHE").write_text(MARKER)\n',
        "tests/test_lock_cache.py::test_the_marker_is_on_the_disk_before_anything_else_is_made",
    ),
    Mutant(
        "the name of a new cache is not synced",
        "stager/cache/start/lock.py",
        "    fsync_path(directory.parent)\n",
        "",
        "tests/test_lock_cache.py::test_the_marker_is_on_the_disk_before_anything_else_is_made",
    ),
    Mutant(
        "a file is renamed before it is synced",
        "stager/atomic.py",
        "        fsync_path(scratch)\n        scratch.replace(target)\n",
        "        scratch.replace(target)\n        fsync_path(target)\n",
        "tests/test_lock_cache.py::test_the_marker_is_on_the_disk_before_anything_else_is_made",
    ),
    Mutant(
        "a damaged marker ends every start",
        "stager/cache/start/lock.py",
        "    if strangers:\n",
        '    if strangers or "CACHE" in names:\n        strangers = strangers or ["CACHE"]\n',
        "tests/test_cache.py::test_a_marker_that_a_power_cut_left_empty_or_a_flipped_bit_is_written_anew",
        error="CacheError: .*not a stager cache",
    ),
    Mutant(
        "a damaged marker makes other people's files ours",
        "stager/cache/start/lock.py",
        '    ours = _OURS if "CACHE" in names else _BEFORE\n',
        '    ours = re.compile(".*") if "CACHE" in names else _BEFORE\n',
        "tests/test_cache.py::test_a_damaged_marker_does_not_make_other_peoples_files_ours",
    ),
    Mutant(
        "the rows of the catalog are not compared with their sums",
        "stager/catalog/database.py",
        "        if row_sum(*row[:-1]) != row[-1]:\n",
        "        if False:\n",
        "tests/test_cache.py::test_rows_and_tables_that_sqlite_finds_nothing_wrong_with_are_compared_all_the_same",
    ),
    Mutant(
        "the tables of the catalog are not compared",
        "stager/catalog/database.py",
        "        elif (version == SCHEMA_VERSION) != (self._schema() == _schema_of_ours()):",
        "        elif False:",
        "tests/test_cache.py::test_rows_and_tables_that_sqlite_finds_nothing_wrong_with_are_compared_all_the_same",
        error="CatalogBroken: .*no such column",
    ),
    Mutant(
        "a manifest is not compared with its seal",
        "stager/reader/samples/sealed.py",
        "tail != _TAIL.pack(MAGIC, size_bytes, _sum(file.fileno(), size_bytes)):",
        "tail[:16] != _TAIL.pack(MAGIC, size_bytes, 0)[:16]:",
        "tests/test_manifest.py::test_every_flipped_bit_of_a_manifest_and_its_records_is_an_error_that_says_what_to_do",
    ),
    Mutant(
        "a shard counts as durable before it is synced",
        "stager/dispatch/sync.py",
        "        path, caught = dataset.path_of(row), None\n",
        "        path, caught = dataset.path_of(row), None\n"
        "        self._events.put(Durable(dataset, row, caught))\n",
        "tests/test_tasks.py::test_a_shard_counts_as_staged_only_when_its_file_and_its_name_are_on_the_disk",
    ),
    Mutant(
        "the name of a shard is not synced",
        "stager/dispatch/sync.py",
        "            fsync_path(path.parent)\n",
        "",
        "tests/test_tasks.py::test_a_shard_counts_as_staged_only_when_its_file_and_its_name_are_on_the_disk",
    ),
    Mutant(
        "the catalog has a shard before it is durable",
        "stager/owner/loop.py",
        "        if np.any(row.samples >= 0):\n            self._disk.add(dataset, row)\n",
        "        if np.any(row.samples >= 0):\n"
        "            self.cache.catalog.add_shard(row)\n"
        "            self._disk.add(dataset, row)\n",
        "tests/test_tasks.py::test_a_shard_counts_as_staged_only_when_its_file_and_its_name_are_on_the_disk",
    ),
    Mutant(
        "a disk that fails to sync is taken at its word",
        "stager/owner/loop.py",
        "            if event.error is not None:",
        "            if False:",
        "tests/test_tasks.py::test_a_shard_that_the_disk_did_not_take_is_taken_back",
    ),
    Mutant(
        "the words of a shard that is taken back stay",
        "stager/cache/gone/departures.py",
        "        samples = self._clear(dataset, [row])\n",
        "        samples = row.samples\n",
        "tests/test_tasks.py::test_a_shard_that_the_disk_did_not_take_is_taken_back",
    ),
]

BUDGET = [
    Mutant(
        "the reservation of a task that has ended stays",
        "stager/dispatch/tasks.py",
        "if written_bytes else task.reservation.release()\n",
        "if written_bytes else None\n",
        "tests/test_tasks.py::test_a_task_that_comes_to_nothing_gives_back_its_reservation_and_its_samples",
    ),
    Mutant(
        "a reservation may end twice",
        "stager/cache/budget.py",
        "        self._is_open = False\n",
        "",
        "tests/test_reservation.py::test_a_reservation_that_has_ended_does_not_end_again",
    ),
    Mutant(
        "what was written does not count",
        "stager/cache/budget.py",
        "        self._books.used_bytes += written_bytes\n",
        "",
        "tests/test_reservation.py::test_what_is_charged_is_used_as_it_was_written",
    ),
    Mutant(
        "a worker that dies keeps what it had",
        "stager/dispatch/tasks.py",
        "        for task in tasks:\n            self._abandon(task)\n",
        "        for task in tasks:\n            del self._open[task.id]\n",
        "tests/test_tasks.py::test_a_task_that_comes_to_nothing_gives_back_its_reservation_and_its_samples",
    ),
    Mutant(
        "samples of a task that has ended stay in flight",
        "stager/dispatch/pending/in_flight.py",
        "            marks[lot.samples] = False\n",
        "            marks[lot.samples[:0]] = False\n",
        "tests/test_tasks.py::test_a_task_that_comes_to_nothing_gives_back_its_reservation_and_its_samples",
    ),
    Mutant(
        "the samples of a dead worker are forgotten",
        "stager/dispatch/pending/suspects.py",
        "            for half in np.array_split(lot.samples, 2):\n",
        "            for half in np.array_split(lot.samples, 2)[1:]:\n",
        "tests/test_tasks.py::test_the_samples_of_a_worker_that_dies_are_given_out_again_in_halves",
    ),
    Mutant(
        "bytes are taken without a look at the room",
        "stager/cache/budget.py",
        "        if size_bytes > self.room_bytes():\n",
        "        if False:\n",
        "tests/test_cache.py::test_what_is_over_capacity_or_would_eat_the_reserve_is_refused",
    ),
    Mutant(
        "what is reserved counts as free",
        "stager/cache/budget.py",
        "        return min(in_budget, on_disk) - self.reserved_bytes\n",
        "        return min(in_budget, on_disk)\n",
        "tests/test_cache.py::test_what_is_over_capacity_or_would_eat_the_reserve_is_refused",
    ),
    Mutant(
        "what comes for a pinned shard is not pinned",
        "stager/owner/loop.py",
        "replace(row, is_asked=is_asked, is_pinned=is_pinned)",
        "replace(row, is_asked=is_asked)",
        "tests/test_tasks.py::test_what_comes_for_a_pinned_shard_that_was_corrupt_is_pinned",
    ),
]

SOURCES = [
    Mutant(
        "one object that comes wrong twice turns MD5s off",
        "stager/sources/s3/check.py",
        "        with self._deciding:\n"
        "            if not self._has_matched and not self._is_off:\n"
        "                self._decide(info, data)\n",
        "        if self._comes_wrong_alike(info, data):\n"
        "            self._is_off, self._has_matched = True, False\n"
        "            return data\n",
        "tests/test_s3_check.py::test_an_object_that_comes_wrong_and_alike_each_time_is_never_given_out_where_etags_are_md5s",
    ),
    Mutant(
        "no witness is needed to turn MD5s off",
        "stager/sources/s3/check.py",
        "        if agreeing < min(AGREEING, len(witnesses)):\n",
        "        if False:\n",
        "tests/test_s3_check.py::test_objects_that_come_otherwise_each_time_are_no_evidence_either",
    ),
    Mutant(
        "a listing that does not say where it goes on has ended",
        "stager/sources/s3/listing.py",
        '        raise Contradiction("it goes on, and does not say where")\n',
        "        return None\n",
        "tests/test_s3_listing.py::test_a_listing_that_contradicts_itself_is_an_error_at_once",
    ),
    Mutant(
        "pages in a circle are listed again",
        "stager/sources/s3/listing.py",
        "        if hash(token) in self._asked:\n",
        "        if False:\n",
        "tests/test_s3_listing.py::test_a_listing_that_contradicts_itself_is_an_error_at_once",
    ),
    Mutant(
        "an expression may be as long as it likes",
        "stager/reader/samples/predicate.py",
        "        if len(expression) > LENGTH_MAX:\n",
        "        if False:\n",
        "tests/test_where.py::test_where_has_a_bound_and_a_short_message",
    ),
    Mutant(
        "an expression is copied at each word",
        "stager/reader/samples/predicate.py",
        "            match = _TOKEN.match(expression, at)\n",
        "            match = _TOKEN.match(expression, at) if expression[at:] else None\n",
        "tests/test_where.py::test_an_expression_is_read_once_from_left_to_right",
    ),
]

UPKEEP = [
    Mutant(
        "a data set goes while workers have some of it",
        "stager/owner/upkeep/removals.py",
        "        if self._is_under_way(name):\n            return told\n",
        "",
        "tests/test_upkeep.py::test_a_data_set_goes_when_what_workers_have_of_it_has_ended",
    ),
    Mutant(
        "a prefetch takes the place of what is pinned or read next",
        "stager/eviction/evictor.py",
        "        return np.asarray(is_resident(words) & free & ~asked)\n",
        "        return np.asarray(is_resident(words) & (free | is_told) & ~asked)\n",
        "tests/test_upkeep.py::test_what_is_pinned_does_not_go_and_then_it_is_refused",
    ),
    Mutant(
        "an event that came late is told of again",
        "stager/sources/s3/queue.py",
        "            if not event.sequencer or not known or is_later(event.sequencer, known):\n",
        "            if True:\n",
        "tests/test_bucket_events.py::test_in_whatever_order_they_come_the_last_told_of_each_key_is_its_latest",
    ),
    Mutant(
        "a limit saves up what nobody used",
        "stager/sources/limit.py",
        "    return max(due_s, now_s) + seconds, 0.0\n",
        "    return due_s + seconds, 0.0\n",
        "tests/test_source_limits.py::test_what_is_claimed_takes_its_time_but_for_the_burst",
    ),
]

WATCH = [
    Mutant(
        "a scan of some folders brings back what went meanwhile",
        "stager/cache/cache.py",
        "        if joins.is_part and joins.newest != known.manifest.digest:\n            return False\n",
        "",
        "tests/test_scan_again.py::test_a_scan_of_some_folders_counts_only_after_the_version_that_it_has_the_rest_of",
    ),
    Mutant(
        "a file is taken while somebody writes it",
        "stager/scan/ripe.py",
        "            if not self._is_late(info):\n",
        "            if info.key:\n",
        "tests/test_scan_again.py::test_a_file_that_somebody_still_writes_is_left_as_it_was_known_and_told_of",
    ),
    Mutant(
        "folders that have gone are known for ever",
        "stager/sources/mount/relisting.py",
        " | (below[folder] - there)\n",
        "\n",
        "tests/test_scan_again.py::test_a_scan_of_what_changed_gives_the_version_of_a_scan_of_everything",
    ),
    Mutant(
        "a sample that came is behind all others of its class",
        "stager/scan/again.py",
        "            is_touched = np.isin(groups, groups[kept:])\n",
        "            is_touched[kept:] = True\n",
        "tests/test_scan_again.py::test_a_scan_of_what_changed_gives_the_version_of_a_scan_of_everything",
    ),
    Mutant(
        "a frozen data set takes whatever comes back",
        "stager/watch/watched.py",
        "self._pending, self.is_frozen)\n",
        "self._pending, False)\n",
        "tests/test_watched.py::test_a_source_that_lost_too_much_freezes_and_thaws_when_it_is_back_as_it_was",
    ),
]

MUTANTS = [
    *RATES,
    *DEPARTURES,
    *INDEX,
    *READERS,
    *VERSIONS,
    *DURABLE,
    *BUDGET,
    *SOURCES,
    *OF_DATA,
    *UPKEEP,
    *WATCH,
]
